#!/usr/bin/python3
"""compare.py REFERENCE RUN [STAGE...] [--json] [--max N]: differences by area; exit 1 if there are any.

Areas: pushed keys and answers of a run are compared stage by stage. Differences of many jobs of one class are one line.
A stage is STAGE.json or STAGE.json.gz. Not compared: locks, the journal, pids, runtimes (but those of `Slow`), contents of lists while busy.
"""
import argparse, gzip, json, os, re, sys

ap = argparse.ArgumentParser()
ap.add_argument('reference'); ap.add_argument('run'); ap.add_argument('stages', nargs='*')
ap.add_argument('--max', type=int, default=25); ap.add_argument('--json', action='store_true'); ap.add_argument('--areas', help='a regex such as api/(stats|failed)|keys/lists')
ap.add_argument('--any-exception', action='store_true', help='of exceptions only whether there is one (handlers in Rust)')
ap.add_argument('--right', action='store_true', help='leave out the differences that the README calls right')
ap.add_argument('--rust', action='store_true', help='and those of jobs in Rust: the callbacks of a batch are two closures that PHP runs')
a = ap.parse_args()
stages = a.stages or ['pushed', 'drained', 'snapshot', 'busy', 'retried', 'cleared', 'end']
# What may differ: how often heartbeats and locks are seen, timing of a busy server, which process has which pid.
SKIP = re.compile(r'/(locks|journal|other)(/|$)|:notify|supervisors/.*(parentId|pid)$|busy.*(queues|pending|completed|recent_jobs|lists|jobs|metrics)/')


# Records of jobs that were pushed without Horizon have what its own workers leave out.
RIGHT = re.compile(r'<?Jobs.Hz.Ok:foreign\d')
CLOSURES = re.compile(r'Batched:[0-9a-f]{6}\b|silenced/total$|Batched( \(closure\)|%20%28closure%29)|queue:default(/0)?/throughput$|queues%default/0/throughput$')


def is_right(path, x):
    if not a.right:
        return False
    more_fields = path.startswith('/keys/jobs/') and x == '(absent)' and path.count('/') > 3
    return more_fields or bool(RIGHT.search(path)) or (a.rust and bool(CLOSURES.search(path)))


def load(d, stage):
    plain = f'{d}/{stage}.json'
    with open(plain, 'rb') if os.path.exists(plain) else gzip.open(plain + '.gz') as f:
        return json.loads(f.read().decode('utf-8', 'surrogateescape'))


def brief(v):
    if isinstance(v, dict) and v:
        return f"({v['status']})" if 'status' in v and 'id' in v else f'({len(v)} entries)' if len(v) > 1 else '(there)'
    return '(there)' if v is True else json.dumps(v, ensure_ascii=False)


def tree(v):
    """Lists of texts and of objects as dictionaries."""
    if isinstance(v, list) and all(isinstance(x, str) for x in v):
        seen, out = {}, {}
        for x in v:
            seen[x] = seen.get(x, 0) + 1
            out[x + (f'~{seen[x]}' if seen[x] > 1 else '')] = True
        return out
    if isinstance(v, list):
        return {(x.get('name') or str(i)) if isinstance(x, dict) else str(i): x for i, x in enumerate(v)}
    return v


def differ(x, y, path=''):
    x, y = tree(x), tree(y)
    if not x and not y and isinstance(x, (dict, list)) and isinstance(y, (dict, list)):
        return      # `tags` is `[]` as pushed and `{}` after Laravel's own pop script: either will do
    if isinstance(x, dict) and isinstance(y, dict):
        for k in sorted(x.keys() | y.keys()):
            p = f'{path}/{k.replace("/", "%")}'
            if k not in x:
                yield p, '(absent)', brief(y[k])
            elif k not in y:
                yield p, brief(x[k]), '(absent)'
            else:
                yield from differ(x[k], y[k], p)
    elif x != y and not (a.any_exception and path.endswith('/exception') and bool(x) == bool(y)):
        yield path, json.dumps(x, ensure_ascii=False), json.dumps(y, ensure_ascii=False)


def klass(path):
    return re.sub(r'(:)[^/<>]*?(#\d+)?(?=[/>]|$)', r':*', re.sub(r'(Jobs|Listeners|Notifications|Events|Mail)\\Hz\\(\w+):[^/>]*', r'\2:*', path))


total = 0
result = {}
for stage in stages:
    try:
        ref, run = (load(d, stage) for d in (a.reference, a.run))
    except FileNotFoundError as e:
        print(f'== {stage}: missing: {e.filename}'); total += 1; continue
    diffs = {}
    for p, x, y in differ(ref, run):
        if not is_right(p, x) and not SKIP.search(f'{stage}{p}') and not (p.endswith('runtime') and 'low' not in p):
            diffs.setdefault(tuple(p.split('/')[1:3]), {}).setdefault((klass(p), x, y), []).append(p)
    if a.areas:
        diffs = {k: v for k, v in diffs.items() if re.search(a.areas, '/'.join(k))}
    print(f'== {stage}: ' + ('same' if not diffs else ', '.join(f'{s}/{ar} {sum(map(len, d.values()))}' for (s, ar), d in sorted(diffs.items()))))
    for (s, ar), d in sorted(diffs.items()):
        total += len(d)
        for (k, x, y), ps in sorted(d.items(), key=lambda i: (-len(i[1]), i[0]))[:a.max]:
            print(f'   {s}/{ar}  {"" if len(ps) == 1 else f"{len(ps)} x "}{(ps[0] if len(ps) == 1 else k).split("/", 3)[-1]}: {x[:120]} -> {y[:120]}')
        if len(d) > a.max:
            print(f'   {s}/{ar}  ... {len(d) - a.max} more kinds')
    result[stage] = {f'{s}/{ar}': sum(map(len, d.values())) for (s, ar), d in diffs.items()}
if a.json:
    print(json.dumps(result))
sys.exit(1 if total else 0)
