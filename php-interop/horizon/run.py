#!/usr/bin/python3
"""Runs the scenario on a private Redis with one kind of worker and writes normalised dumps.

run.py MODE OUT [--root ROOT] [--artisand BIN] [--port N] [--toml FILE]
MODE: horizon | pool (artisand, PHP pool) | rust (artisand, mappings of rust.toml) | none (no worker)
Artisand's mappings can be replaced with --toml (a file of [[map]] and other tables after [php]).
OUT gets: pushed.json, drained.json, snapshot.json, busy.json, retried.json (each {"keys", "api"}), worker.log, raw/.
"""
import argparse, json, os, signal, subprocess, sys, time
import redis
sys.path.insert(0, os.path.dirname(__file__))
import hz
HERE = os.path.dirname(os.path.abspath(__file__))

ap = argparse.ArgumentParser()
ap.add_argument('mode', choices=['horizon', 'pool', 'rust', 'none'])
ap.add_argument('out')
ap.add_argument('--root', default='/var/lib/artisand/roots/laravel-10')
ap.add_argument('--artisand', default='target/release/artisand')
ap.add_argument('--port', type=int, default=6396)
ap.add_argument('--toml')
ap.add_argument('--no-manifest', action='store_true')
ap.add_argument('--live', action='store_true', help='the worker runs already when jobs are pushed: who is faster, worker or pusher?')
ap.add_argument('--lag', type=int, default=0, help='with --live: milliseconds between the push of a job and its record (Horizon before #1682 has such a gap)')
ap.add_argument('--stages', type=int, default=9, help='2: stop after drained')
a = ap.parse_args()
os.makedirs(a.out + '/raw', exist_ok=True)
out = os.path.abspath(a.out)
app = a.root + '/opt/hzlab/app'
env = dict(os.environ, REDIS_PORT=str(a.port), LC_ALL='C.UTF-8')
if a.lag:
    env['LAB_PUSH_LAG'] = str(a.lag)
NICE = ['nice', '-n', '10']


def php(*args, check=True, capture=True):
    p = subprocess.run(NICE + ['chroot', a.root, 'php', *args], env=env, capture_output=capture, text=True)
    if check and p.returncode:
        sys.exit(f'{args}: exit {p.returncode}\n{p.stdout[-3000:]}{p.stderr[-3000:]}')
    return p.stdout


def artisan(*args, **k):
    return php('/opt/hzlab/app/artisan', *args, **k)


def api(*args, check=True):
    text = php('/opt/hzlab/app/api.php', *args, check=check)
    try:
        return json.loads(text)
    except ValueError:
        return text


def capture(stage):
    answers, keys = api('--all'), hz.dump(a.port)
    names = hz.learn(keys)
    json.dump({'keys': keys, 'api': answers}, open(f'{out}/raw/{stage}.json', 'w'))
    text = json.dumps({'keys': hz.normal_keys(keys, names), 'api': hz.normal_api(answers, names)}, indent=1, sort_keys=True, ensure_ascii=False)
    found = sorted({k.split(':', 2)[2] for k in keys if k.startswith('laravel_horizon:master:')})
    for i, m in enumerate(found):
        text = text.replace(m, f'<master{i + 1}>')
    open(f'{out}/{stage}.json', 'w', encoding='utf-8', errors='surrogateescape').write(text + '\n')
    s = answers['stats']
    print(f"{stage}: recent {s['recentJobs']} failed {s['failedJobs']} status {s['status']} processes {s['processes']}; pending {answers['jobs/pending']['total']}"
          f" completed {answers['jobs/completed']['total']} silenced {answers['jobs/silenced']['total']} failed {answers['jobs/failed']['total']}", flush=True)
    return answers


def drained(limit=60):
    """Waits until nothing is left but what is due later."""
    r = redis.Redis(port=a.port)
    end, calm = time.time() + limit, 0
    while time.time() < end:
        left = 0
        for k in r.scan_iter('laravel_database_queues:*'):
            k = k.decode()
            if k.endswith(':notify'):
                continue
            left += r.llen(k) if r.type(k) == b'list' else r.zcard(k) if k.endswith(':reserved') else r.zcount(k, '-inf', time.time() + 600)
        left += r.llen('laravel_database_artisand:follow-ups') + r.llen('laravel_database_artisand:failed-spool')
        calm = calm + 1 if left == 0 else 0
        # artisand looks again at records that PHP wrote late, within 2.5 s.
        if calm >= 12:
            return True
        time.sleep(0.25)
    print(f'not drained in {limit} s: {left} left', flush=True)
    return False


def start():
    log = open(out + '/worker.log', 'a')
    if a.mode == 'horizon':
        cmd = ['chroot', a.root, 'php', '/opt/hzlab/app/artisan', 'horizon']
    else:
        rest = open(a.toml).read() if a.toml else open(HERE + '/rust.toml').read() if a.mode == 'rust' else ''
        rest = rest.replace('HERE', HERE)
        # Without events: the closures that tell PHP of failures are jobs of their own.
        open(out + '/artisand.toml', 'w').write(f'app = "{app}"\n[php]\nbinary = ["chroot", "{a.root}", "php"]\napp = "/opt/hzlab/app"\nprocesses = 4\nevents = "none"\n\n{rest}')
        if a.mode == 'rust' and not a.no_manifest:
            open(out + '/php', 'w').write(f'#!/bin/sh\nexec chroot {a.root} php "$@"\n'); os.chmod(out + '/php', 0o755)
            m = subprocess.run(NICE + [a.artisand, '--config', out + '/artisand.toml', 'manifest', '--php', out + '/php', '-o', app + '/artisand.json'], env=env, capture_output=True, text=True)
            log.write(f'manifest: {m.returncode} {m.stdout}{m.stderr}\n'); log.flush()
        cmd = [a.artisand, '--config', out + '/artisand.toml', 'queue:work', '--queue=high,default,listeners,slow', '--sleep=1', '--tries=1', '--timeout=60', '--concurrency=4', '-v']
    return subprocess.Popen(NICE + cmd, env=env, stdout=log, stderr=log, start_new_session=True)


def stop(p):
    p.send_signal(signal.SIGTERM)
    try:
        p.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
    print('worker exit', p.returncode, flush=True)


if os.path.exists(app + '/artisand.json'):
    os.remove(app + '/artisand.json')
open(out + '/worker.log', 'w').close()
if subprocess.run(['redis-cli', '-p', str(a.port), 'ping'], capture_output=True).stdout.strip() == b'PONG':
    sys.exit(f'port {a.port} is taken')
server = subprocess.Popen(['redis-server', '--port', str(a.port), '--save', '', '--appendonly', 'no', '--dir', '/tmp'], stdout=subprocess.DEVNULL)
worker = None
signal.signal(signal.SIGTERM, lambda *_: sys.exit('told to stop'))
try:
    r = redis.Redis(port=a.port)
    for _ in range(50):
        try:
            r.ping(); break
        except redis.ConnectionError:
            time.sleep(0.1)
    r.flushall()
    artisan('lab:migrate')
    # Tags that an operator monitors.
    api('POST', 'monitoring', '{"tag":"team:9"}'); api('POST', 'monitoring', '{"tag":"App\\\\Models\\\\Order:1"}')
    if a.live:
        worker = start()
        time.sleep(3)
    php('/opt/hzlab/app/push.php', 'scenario')
    if not a.live:
        capture('pushed')
    if a.mode != 'none':
        worker = worker or start()
        time.sleep(3)
        if worker.poll() is not None:
            sys.exit(f'worker ended with {worker.returncode}:\n' + open(out + '/worker.log').read()[-3000:])
        drained()
        capture('drained')
        if a.stages <= 2:
            sys.exit()
        artisan('horizon:snapshot')
        capture('snapshot')
        # Busy: one slow job to have a runtime, then eight.
        php('/opt/hzlab/app/push.php', 'slow', '1', '100'); time.sleep(1); drained()
        php('/opt/hzlab/app/push.php', 'slow', '12'); time.sleep(1.5)
        capture('busy')
        drained()
        # Retries: one by the dashboard, one by `queue:retry`, one that fails again.
        r.set('laravel_database_lab:healed', '1')
        keys = hz.dump(a.port); names = hz.learn(keys)
        sql = php('-r', f"$d = new PDO('sqlite:/opt/hzlab/app/database/database.sqlite'); foreach ($d->query('select uuid, payload from failed_jobs') as $x) echo $x[0], ' ', $x[1], \"\\n\";")
        ids = {}
        for line in sql.splitlines():
            i, p = line.split(' ', 1)
            ids[names.names.get(i) or i] = i
        heals = sorted(v for k, v in ids.items() if 'Heals' in k)
        report = {'failed_jobs rows': len(ids)}
        pick = lambda part: next(iter(sorted((k, v) for k, v in ids.items() if part in k)), (None, None))[1]
        one, two, three = pick('Heals:1'), pick('Heals:2'), pick('FailNow:1')
        report['dashboard retry'] = api('POST', f'jobs/retry/{one}', check=False)
        report['queue:retry'] = artisan('queue:retry', two or 'none', check=False)
        report['dashboard retry, fails again'] = api('POST', f'jobs/retry/{three}', check=False)
        report['batch retry'] = None
        time.sleep(0.5); drained()
        capture('retried')
        p = subprocess.run(NICE + ['chroot', a.root, 'php', '/opt/hzlab/app/artisan', 'horizon:status'], env=env, capture_output=True, text=True)
        report['horizon:status'] = [p.returncode, p.stdout.strip()]
        report['horizon:clear'] = artisan('horizon:clear', '--force', check=False).strip()
        capture('cleared')
        report['horizon:forget'] = artisan('horizon:forget', pick('FailNow:2') or 'none', check=False).strip()
        api('DELETE', 'monitoring/team:9', check=False)
        capture('end')
        report['journal'] = r.llen('laravel_database_lab:journal')
        json.dump(report, open(out + '/report.json', 'w'), indent=1)
        print(json.dumps(report), flush=True)
finally:
    try:
        if worker and worker.poll() is None:
            stop(worker)
    finally:
        server.terminate(); server.wait()
