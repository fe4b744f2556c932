"""Files of every kind that nobody closes are whole after the script's end."""

import csv
import gzip
import json
import zipfile

log = open("log.csv", "w")
rows = csv.writer(log)
rows.writerows([step, 1 / (step + 1)] for step in range(50))
packed = gzip.GzipFile("log.gz", "wb", mtime=0)
packed.write(b"line\n" * 100)
archive = zipfile.ZipFile("log.zip", "w")
archive.writestr(zipfile.ZipInfo("a.txt"), "hello")
result = open("result.json", "w")
json.dump({"accuracy": 0.9}, result)
lines = open("lines.txt", "w", buffering=1)
lines.write("whole\nhalf of a line")
binary = open("binary", "ab")
binary.write(b"\0" * 10)
print("no newline at the end", end="")
