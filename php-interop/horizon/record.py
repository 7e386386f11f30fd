#!/usr/bin/python3
"""record.py RUN MANIFEST OUT: what real Horizon left of some jobs and what its API answered about them.

RUN is a directory of `run.py horizon RUN --stages 2`; `run.py rust` writes MANIFEST, `artisand.json` in the app.

The test `horizon::records_are_those_that_real_horizon_has_left` pushes the same payloads and compares.
"""
import json, re, sys

run, manifest, out = sys.argv[1:4]
P = 'laravel_horizon:'
CLASSES = ['Ok', 'Fails', 'FailNow', 'Flaky', 'Releases', 'Tagged', 'Tags', 'Keyed', 'Quiet', 'Hush', 'TagFails', 'Secret', 'TimesOut']
# Of two chains and a batch.
LABELLED = ['Step', 'StepFails', 'Batched']
LABELS = ['1-a', '1-b', '1-c', 'f1-a', 'f1-b', 'x1', 'bad', 'y1']
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
    names = {job['after'][field] for job in jobs + steps}
    return [name for name in answers[f'metrics/{kind}'] if name in names]


def ended(ident, after):
    """What is left of a job."""
    return {
        'id': ident, 'after': after['value'], 'ttl': after['ttl'],
        'lists': [one for one in LISTS if P + one in drained and ident in map(str, members(drained[P + one]))],
        'answers': shown(ident),
        'tags': sorted(k.removeprefix(P) for k in drained if k.startswith((P + 'failed:', P + 'team:', P + 'App')) and ident in map(str, members(drained[k]))),
    }


def is_wanted(record):
    """Whether the job is of a kind that handlers run in the test."""
    name = record['name'].removeprefix('App\\Jobs\\Hz\\')
    label = re.search(r'"label";s:\d+:"([^"]*)"', json.loads(record['payload'])['data'].get('command', ''))
    return name in CLASSES or name in LABELLED and label[1] in LABELS


records = {key: row for key, row in drained.items() if row['type'] == 'hash' and key.startswith(P) and {'name', 'payload'} <= row['value'].keys()}
jobs, seen = [], {}
for key in sorted(pushed):
    record = pushed[key]
    if key not in records or record['type'] != 'hash' or not is_wanted(record['value']):
        continue
    before = record['value']
    queued = [k for k in pushed if k.endswith('queues:' + before['queue'])]
    if before['id'] not in str(pushed[queued[0]]['value']):
        continue
    kind = (before['name'], before['queue'])
    seen[kind] = seen.get(kind, 0) + 1
    if seen[kind] > 2 and not kind[0].endswith('Batched'):
        continue
    jobs.append({'before': before} | ended(before['id'], records[key]))
# What the ends of these jobs have pushed.
steps = [ended(row['value']['id'], row) for key, row in sorted(records.items()) if key not in pushed and is_wanted(row['value']) and '\\Step' in row['value']['name']]
commands = ''.join(json.loads(job['before']['payload'])['data']['command'] for job in jobs)
manifest = json.load(open(manifest))
classes = manifest['classes']
classes = {name: {field: value for field, value in classes[name].items() if field not in ('mtime', 'sources')} for name in classes if name.endswith(('Hz\\Step', 'Hz\\StepFails'))}
batches = [batch for batch in answers['batches']['batches'] if batch['id'] in commands]
measured = {'jobs': measured('jobs', 'name'), 'queues': measured('queues', 'queue')}
json.dump({'horizon': '5.29.1', 'laravel': manifest['laravel'], 'monitoring': sorted(members(pushed[P + 'monitoring'])), 'measured': measured, 'classes': classes, 'batches': batches, 'jobs': jobs, 'steps': steps}, open(out, 'w'), indent=1)
print(len(jobs), 'jobs', len(steps), 'steps', len(batches), 'batches', seen)
