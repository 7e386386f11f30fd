#!/usr/bin/python3
"""record.py RUN LARAVEL OUT: what real Horizon left of some jobs and what its API answered about them.

RUN is a directory of `run.py horizon RUN --stages 2`.

The test `horizon::records_are_those_that_real_horizon_has_left` pushes the same payloads and compares.
"""
import json, sys

run, laravel, out = sys.argv[1:4]
P = 'laravel_horizon:'
CLASSES = ['Ok', 'Fails', 'FailNow', 'Flaky', 'Releases', 'Tagged', 'Tags', 'Keyed', 'Quiet', 'Hush', 'TagFails']
LISTS = ['completed_jobs', 'silenced_jobs', 'failed_jobs', 'recent_failed_jobs', 'pending_jobs', 'recent_jobs', 'monitored_jobs']
pushed, drained = (json.load(open(f'{run}/raw/{stage}.json')) for stage in ('pushed', 'drained'))
answers, pushed, drained = drained['api'], pushed['keys'], drained['keys']


def members(key):
    return [row[0] for row in key['value']] if isinstance(key['value'], list) and key['value'] and isinstance(key['value'][0], list) else list(key['value'])


def shown(ident):
    """What the pages show of a job: those of states, of the failed job itself, and of failed jobs with a tag."""
    found = {}
    for page, answer in answers.items():
        if page == f'jobs/failed/{ident}':
            found[page] = answer
        elif page.startswith('jobs/') and isinstance(answer.get('jobs'), list) or page.startswith('monitoring/failed'):
            found.update((page, job) for job in answer['jobs'] if job['id'] == ident)
    return {page: {name: value for name, value in job.items() if name != 'index'} for page, job in sorted(found.items())}


def measured(kind, field):
    """The names on a page of metrics that have to do with these jobs."""
    names = {job['after'][field] for job in jobs}
    return [name for name in answers[f'metrics/{kind}'] if name in names]


jobs, seen = [], {}
for key in sorted(pushed):
    record = pushed[key]
    if record['type'] != 'hash' or not key.startswith(P) or 'payload' not in record['value']:
        continue
    before, after = record['value'], drained.get(key)
    name = before['name'].removeprefix('App\\Jobs\\Hz\\')
    queued = [k for k in pushed if k.endswith('queues:' + before['queue'])]
    if name not in CLASSES or after is None or before['id'] not in str(pushed[queued[0]]['value']):
        continue
    kind = (name, before['queue'])
    seen[kind] = seen.get(kind, 0) + 1
    if seen[kind] > 2:
        continue
    jobs.append({
        'id': before['id'], 'before': before, 'after': after['value'], 'ttl': after['ttl'],
        'lists': [one for one in LISTS if P + one in drained and before['id'] in map(str, members(drained[P + one]))],
        'answers': shown(before['id']),
        'tags': sorted(k.removeprefix(P) for k in drained if k.startswith((P + 'failed:', P + 'team:', P + 'App')) and before['id'] in map(str, members(drained[k]))),
    })
json.dump({'horizon': '5.29.1', 'laravel': laravel, 'monitoring': sorted(members(pushed[P + 'monitoring'])), 'measured': {'jobs': measured('jobs', 'name'), 'queues': measured('queues', 'queue')}, 'jobs': jobs}, open(out, 'w'), indent=1)
print(len(jobs), 'jobs', seen)
