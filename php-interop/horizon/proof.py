#!/usr/bin/python3
"""proof.py crowd|waits|killed|control OUT [--root ROOT] [--artisand BIN] [--jobs N] [--events failures|all]: what run.py does
not show, in a root of setup.sh.

crowd  two workers of artisand (one with handlers of rust.toml, one with PHP processes only) and real Horizon share the queues while jobs
       are pushed: the totals of the dashboard and of the metrics are those of the pushes. With --events failures or all PHP hears of
       failures in closures, which are silenced jobs.
waits  artisand alone, and more jobs than it can run in a minute: Horizon's LongWaitDetected is raised, and its mail sent.
killed artisand is killed while it runs jobs beside Horizon: all pages answer, and horizon:terminate ends Horizon.
control horizon:pause, horizon:continue and horizon:terminate act on artisand.

Prints one line per figure; exit 1 if one is wrong. Both use a redis-server of their own.
"""
import argparse, json, os, signal, socket, subprocess, sys, time
import redis
HERE = os.path.dirname(os.path.abspath(__file__))
ap = argparse.ArgumentParser()
ap.add_argument('what', choices=['crowd', 'waits', 'killed', 'control'])
ap.add_argument('out')
ap.add_argument('--root', default='/var/lib/artisand/roots/laravel-10')
ap.add_argument('--artisand', default='target/release/artisand')
ap.add_argument('--jobs', type=int, default=10000)
ap.add_argument('--events', default='none', choices=['none', 'failures', 'all'])
a = ap.parse_args()
out = os.path.abspath(a.out); os.makedirs(out, exist_ok=True)
app, P, NICE = a.root + '/opt/hzlab/app', 'laravel_horizon:', ['nice', '-n', '10']
with socket.socket() as s:
    s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]
env = dict(os.environ, REDIS_PORT=str(port), LC_ALL='C.UTF-8')
started, wrong = [], []


def php(*args):
    p = subprocess.run(NICE + ['chroot', a.root, 'php', *args], env=env, capture_output=True, text=True)
    if p.returncode:
        sys.exit(f'{args}: exit {p.returncode}\n{p.stdout[-3000:]}{p.stderr[-3000:]}')
    return p.stdout


def api(path):
    return json.loads(php('/opt/hzlab/app/api.php', path))


def start(name, command):
    log = open(f'{out}/{name}.log', 'w')
    started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True))
    return started[-1]


def artisand(name, rest, *more):
    open(f'{out}/{name}.toml', 'w').write(f'app = "{app}"\n[php]\nbinary = ["chroot", "{a.root}", "php"]\napp = "/opt/hzlab/app"\nprocesses = 2\nevents = "{a.events}"\n\n{rest}')
    return start(name, NICE + [a.artisand, '--config', f'{out}/{name}.toml', 'queue:work', '--queue=high,default,listeners,slow', '--sleep=1', '--tries=1', *more])


def within(seconds, what, look):
    end = time.time() + seconds
    while time.time() < end:
        if look():
            return True
        time.sleep(0.25)
    print(f'not within {seconds} s: {what}')
    wrong.append(what)


def check(what, asked, found):
    print(f'{what}: {found}' + ('' if asked == found else f', asked {asked}'))
    if asked != found:
        wrong.append(what)


def stop(p):
    p.send_signal(signal.SIGTERM)
    try:
        p.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)


def left(r):
    keys = [k for k in r.keys('laravel_database_queues:*') if not k.endswith(b':notify')]
    return sum(r.llen(k) if r.type(k) == b'list' else r.zcard(k) for k in keys)


def crowd(r):
    # Out of ten: seven that succeed, one silenced, one that fails, one that fails twice and then succeeds.
    tenth = a.jobs // 10
    kinds = {'ok': 7 * tenth, 'quiet': tenth, 'fails': tenth, 'flaky': tenth}
    workers = [rust(), artisand('pool', ''),
               start('horizon', NICE + ['chroot', a.root, 'php', '/opt/hzlab/app/artisan', 'horizon'])]
    within(60, 'three masters', lambda: r.zcard(P + 'masters') == 3)
    began = time.time()
    pushers = [start(f'push-{kind}', NICE + ['chroot', a.root, 'php', '/opt/hzlab/app/push.php', kind, str(n)]) for kind, n in kinds.items()]
    for p in pushers:
        check('push', 0, p.wait())
    within(600, 'the queues are empty', lambda: left(r) == 0)
    print(f'{a.jobs} jobs in {time.time() - began:.0f} s')
    time.sleep(3)  # records that PHP wrote late are looked at again
    check('masters', 3, len(api('masters')))
    silenced = api('jobs/silenced')['total']
    closures = silenced - tenth if a.events != 'none' else 0
    print(f'closures: {closures}')
    for name, asked in {'pending': 0, 'completed': 8 * tenth, 'silenced': tenth + closures, 'failed': tenth}.items():
        check(name, asked, api(f'jobs/{name}')['total'])
    stats = api('stats')
    check('recentJobs', a.jobs + closures, stats['recentJobs']); check('failedJobs', tenth, stats['failedJobs'])
    php('/opt/hzlab/app/artisan', 'horizon:snapshot')
    for name, asked in {'queues/default': 9 * tenth + closures, 'jobs/App%5CJobs%5CHz%5COk': 7 * tenth, 'jobs/App%5CJobs%5CHz%5CQuiet': tenth, 'jobs/App%5CJobs%5CHz%5CFlaky': tenth}.items():
        check(f'throughput of {name}', asked, api(f'metrics/{name}')[0]['throughput'])
    for p in workers:
        stop(p)
    for name in ['rust', 'pool']:
        log = open(f'{out}/{name}.log').read()
        print(f'done by {name}: {log.count(" DONE") + log.count(" FAIL")}')
    status = {}
    for k in r.scan_iter(P + '*-*-*-*-*', count=5000):
        if r.type(k) == b'hash':
            s = r.hget(k, 'status'); status[s] = status.get(s, 0) + 1
    check('records by status', {b'completed': 9 * tenth + closures, b'failed': tenth}, status)


def waits(r):
    worker = artisand('pool', '')
    php('/opt/hzlab/app/push.php', 'slow', '1')
    within(60, 'one slow job has run', lambda: r.hget(P + 'queue:slow', 'throughput') == b'1')
    php('/opt/hzlab/app/push.php', 'slow', '400', '2')
    journal = lambda: [line.decode() for line in r.lrange('laravel_database_lab:journal', 0, -1) if b'LongWait' in line]
    within(90, 'LongWaitDetected', journal)
    print('journal:', journal())
    check('mails', 1, sum('LongWaitMail' in line for line in journal()))
    check('events', 1, sum('LongWaitDetected' in line for line in journal()))
    check("Horizon's lock", True, 0 < r.ttl(P + 'monitor:time-to-clear') <= 60)
    stop(worker)


PAGES = ['stats', 'workload', 'masters', 'jobs/pending', 'jobs/completed', 'jobs/silenced', 'jobs/failed', 'metrics/jobs', 'metrics/queues',
         'monitoring', 'batches']


def rust():
    return artisand('rust', open(HERE + '/rust.toml').read().replace('HERE', HERE), '--concurrency=4')


def killed(r):
    worker, horizon = rust(), start('horizon', NICE + ['chroot', a.root, 'php', '/opt/hzlab/app/artisan', 'horizon'])
    within(60, 'two masters', lambda: r.zcard(P + 'masters') == 2)
    php('/opt/hzlab/app/push.php', 'ok', '300')
    php('/opt/hzlab/app/push.php', 'fails', '50')
    within(60, 'artisand has begun', lambda: os.path.getsize(f'{out}/rust.log') > 2000)
    worker.kill(); worker.wait()
    for page in PAGES:
        api(page)  # ends this program if it fails
    print(f'{len(PAGES)} pages answer')
    # Its master expires, and Horizon's own goes on.
    within(40, "artisand's records have expired", lambda: len(api('masters')) == 1)
    php('/opt/hzlab/app/artisan', 'horizon:terminate')
    try:
        print('horizon:terminate: exit', horizon.wait(120))
    except subprocess.TimeoutExpired:
        wrong.append('horizon:terminate')


def control(r):
    worker = rust()
    within(60, 'a master', lambda: r.zcard(P + 'masters') == 1)
    master = r.zrange(P + 'masters', 0, -1)[0].decode()
    status = lambda: r.hget(f'{P}master:{master}', 'status')
    for command, asked in [('pause', b'paused'), ('continue', b'running')]:
        php('/opt/hzlab/app/artisan', f'horizon:{command}')
        if within(20, f'horizon:{command}', lambda: status() == asked):
            print(f'horizon:{command}: {asked.decode()}')
    php('/opt/hzlab/app/artisan', 'horizon:terminate')
    check('exit after horizon:terminate', 0, worker.wait(60))
    check('masters', 0, r.zcard(P + 'masters'))


for file in ['artisand.json']:
    if os.path.exists(f'{app}/{file}'):
        os.remove(f'{app}/{file}')
server = subprocess.Popen(['redis-server', '--port', str(port), '--save', '', '--appendonly', 'no', '--dir', '/tmp'], stdout=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, lambda *_: sys.exit('told to stop'))
try:
    r = redis.Redis(port=port)
    for _ in range(50):
        try:
            r.ping(); break
        except redis.ConnectionError:
            time.sleep(0.1)
    php('/opt/hzlab/app/artisan', 'lab:migrate')
    {'crowd': crowd, 'waits': waits, 'killed': killed, 'control': control}[a.what](r)
finally:
    for p in started:
        if p.poll() is None:
            stop(p)
    server.terminate(); server.wait()
sys.exit(f'wrong: {wrong}' if wrong else 0)
