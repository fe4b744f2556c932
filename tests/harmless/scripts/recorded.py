"""The error file that torch's recorder writes, by its variable."""

import json
import os

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    raise ValueError("recorded")


try:
    main()
except ValueError:
    with open(os.environ["TORCHELASTIC_ERROR_FILE"]) as file:
        error = json.load(file)
    print(error["message"]["message"], sorted(error["message"]["extraInfo"]), flush=True)
    raise
