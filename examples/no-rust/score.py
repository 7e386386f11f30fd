"""Runs job after job: a line of JSON in, a line of JSON out, until the input ends."""

import json
import os
import sys

GOOD = {"good", "great", "excellent", "love"}
BAD = {"bad", "poor", "terrible", "broken"}


def score(job):
    """Does the work; what is returned is the answer."""
    review = job["data"]["review"]
    if not review.strip():
        return {"fail": "the review is empty"}
    words = [word.strip(".,!?").lower() for word in review.split()]
    points = sum(word in GOOD for word in words) - sum(word in BAD for word in words)
    directory = os.environ.get("OUTPUT", "output")
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, f"score-{job['data']['id']}.txt"), "w") as file:
        file.write(f"{points}\n")
    # Standard error goes to artisand's log, with the uuid of the job.
    print(f"process {os.getpid()}: {points} points", file=sys.stderr, flush=True)
    return {"ok": True}


# Output of libraries must not come between the answers.
answers, sys.stdout = sys.stdout, sys.stderr

for line in sys.stdin:
    job = json.loads(line)
    try:
        answer = score(job)
    except Exception as error:
        # An exception of the job, which runs again if its limits allow it.
        answer = {"error": f"{type(error).__name__}: {error}"}
    # artisand checks that the answer is for the job that it sent.
    answer["uuid"] = job["uuid"]
    print(json.dumps(answer), file=answers, flush=True)
