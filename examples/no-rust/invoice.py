"""Runs one job: the document on standard input, the verdict in the exit code."""

import json
import os
import sys

FAILED_FOR_GOOD = 65
RELEASED = 75

job = json.load(sys.stdin)
order = job["data"]["orderId"]
amount = job["data"]["amount"]

if amount < 0:
    # The text becomes the exception in failed_jobs.
    print(f"order {order} has an amount below zero", file=sys.stderr)
    sys.exit(FAILED_FOR_GOOD)

directory = os.environ.get("OUTPUT", "output")
try:
    os.makedirs(directory, exist_ok=True)
    # Each attempt writes the file again: a job may run twice.
    with open(os.path.join(directory, f"invoice-{order}.txt"), "w") as file:
        file.write(f"Invoice for order {order}: {amount:.2f}\n")
except OSError as error:
    # The disk may have room later. The last line gives the seconds to wait.
    print(error, file=sys.stderr)
    print("release 30")
    sys.exit(RELEASED)
