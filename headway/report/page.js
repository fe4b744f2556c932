"use strict";
for (const plot of document.querySelectorAll(".plot")) {
  const points = JSON.parse(plot.dataset.points);
  const frame = plot.querySelector(".frame");
  const cross = plot.querySelector(".cross");
  const tip = plot.querySelector(".tip");

  const nearest = (x) => {
    let low = 0;
    let high = points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][3] < x) low = middle;
      else high = middle;
    }
    return x - points[low][3] < points[high][3] - x ? points[low] : points[high];
  };

  frame.addEventListener("pointermove", (event) => {
    if (points.length === 0) return;
    const box = frame.getBoundingClientRect();
    const [step, loss, generation, x] = nearest((1000 * (event.clientX - box.left)) / box.width);
    cross.hidden = tip.hidden = false;
    cross.style.left = `${x / 10}%`;
    tip.textContent = `step ${step.toLocaleString("en")}, loss ${loss}, generation ${generation}`;
    tip.style.left = x < 500 ? `calc(${x / 10}% + 10px)` : "auto";
    tip.style.right = x < 500 ? "auto" : `calc(${100 - x / 10}% + 10px)`;
  });
  frame.addEventListener("pointerleave", () => {
    cross.hidden = tip.hidden = true;
  });
}
