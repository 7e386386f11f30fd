<?php

/**
 * Runs jobs that `artisand` has reserved, in the app's own PHP, with Laravel's own worker.
 *
 * One process is one member of the pool. It boots the app once and then runs
 * `Illuminate\Queue\Worker::daemon`, as `php artisan queue:work` does. Only the
 * queue is different: `pop()` waits for a job on a socket, and the member reports
 * the job's end (deleted, released, failed) there instead of writing it to Redis or the database.
 * Laravel does the rest: middleware, chains, batches, locks, `failed()`, events,
 * timeouts, and the decision when to stop.
 *
 * The socket is file descriptor 3. Each side writes lines of JSON. From artisand:
 *
 *   {"app": "/srv/app", "connection": "redis", "queue": "default", ...}   once, see Member::boot
 *   {"do": "run", "queue": "default", "body": 650, "reserved": 650, "until": 81500000000, "lease": 90500000000,
 *    "soon": true}         then this number of bytes. A member that reads this at `until` of `hrtime()` or later
 *                          does not begin the job. Before `lease` no other worker can get the job (null: never).
 *                          With `soon`, the next job may come as soon as Laravel has deleted this one
 *   {"do": "settled", "settled": true}   the answer to `failed`, and to `deleted` without `last`: whether artisand has
 *                          written that to the queue
 *   {"do": "stop"}
 *
 * Each line from the member begins with the `key` of the first line and the number of orders read so far. What other
 * processes write to this descriptor (programs that a job started) lacks the key, and need not end with a line break:
 * artisand passes over all that is in front of the key. Then comes JSON in which `is` names the message:
 *
 *   booted     the app has booted; versions `laravel` and `php`, `signals` if it catches SIGTERM, `interruptible` if it
 *              passes signals on to its job, `memory`, the exit status beyond the memory limit, if the app has set one,
 *              `pid`, `clock` in nanoseconds
 *   ready      waits for a job; `clock`. Not sent while the worker is paused, nor if the next job came soon
 *   paused     Laravel's loop runs and may not pop a job: a listener of Looping, all queues paused
 *   declined   the job does not begin, because the worker has to pause (down, or a listener of Looping) or to restart,
 *              or because the job came too late
 *   deleted (`last` if Laravel is done with the job), released (`delay`), failed (`exception` as Laravel
 *              records it, `class`, `message`, `logged` if it is in the app's store already). After a failure, and after
 *              a deletion that is not the last step, PHP continues after the answer
 *   exception  the attempt threw (`class`, `message`)
 *   timeout    the attempt ran too long
 *   done       the attempt is over, and Laravel's loop has begun the next round; `ready` implies that, too, and so does
 *              a line that counts one more order
 *   parting    no content: the member sends it to find out whether artisand is there
 *   unbootable the app cannot boot (`message`)
 *
 * Messages about a job are about the last one that the member has read.
 *
 * If artisand is gone, this process writes the end of its job to the queue itself, but
 * only while the job is still reserved: after that another worker may run the job,
 * and this process kills itself before it does anything more for it. It does the
 * same for the previous job if artisand may have received its end and not written
 * it. It has one second for that: then artisand's supervisor kills it. PHP 7.3 and later, Laravel 8 to 13.
 *
 * A helper (helper.php, sent in front of this program) boots the same way and runs no jobs.
 */

namespace Artisand\Pool;

/** Seconds for which the result of a look for signals is reused. */
const MOMENT = 0.005;

/** The socket to artisand. */
class Channel
{
    const LONGEST_TEXT = 1 << 20;

    /** Seconds without a job after which Laravel's loop runs, to check whether it has to stop. */
    const PATIENCE = 3;

    /** Microseconds to wait for the next job where artisand sends it without being told that this process waits. */
    const SOON = 1000;

    private $in;

    private $out;

    private $owner;

    private $isOpen = true;

    /** Distinguishes this member's lines from those of other processes. */
    private $key = '-';

    /** Number of jobs read. */
    public $orders = 0;

    public function __construct()
    {
        // PHP has read this program from here, and maybe some bytes after it.
        $this->in = $GLOBALS['artisand'];
        $this->out = fopen('php://fd/3', 'wb');
        $this->owner = getmypid();
        stream_set_write_buffer($this->out, 0);
    }

    /** Waits for a line, which may be known to be there; null if there will be none, false after a while or a signal. */
    public function receive($isThere = false)
    {
        // A job may have closed all open descriptors.
        if (! $this->isOpen || ! is_resource($this->in)) {
            return $this->close();
        }
        if (! $isThere && ! $this->hasNews(self::PATIENCE)) {
            return false;
        }
        $line = fgets($this->in);

        return $line === false ? $this->close() : json_decode($line, true);
    }

    /** Whether there is something to read, now or within this number of seconds and microseconds. */
    public function hasNews($patience = 0, $micros = 0)
    {
        if (! is_resource($this->in)) {
            return true;
        }
        // PHP also looks at bytes that it has read together with an earlier line.
        $ready = [$this->in];
        $none = null;

        return (bool) @stream_select($ready, $none, $none, $patience, $micros);
    }

    private function close()
    {
        $this->isOpen = false;

        return null;
    }

    public function open($key)
    {
        $this->key = $key;
    }

    /** Whether artisand has ended. Reads nothing. */
    public function isAbandoned()
    {
        return ! $this->send('parting');
    }

    /** The same, cheaper: one check while artisand lives and has sent nothing. */
    public function isGone()
    {
        return ! $this->isOpen || ($this->hasNews() && $this->isAbandoned());
    }

    /** Waits until artisand answers whether it has written the end of the job down; null if artisand has ended. */
    public function answer()
    {
        do {
            $line = $this->receive();
        } while ($line === false);

        return is_array($line) && isset($line['settled']) ? (bool) $line['settled'] : null;
    }

    public function bytes($length)
    {
        $bytes = '';
        while (strlen($bytes) < $length && ! feof($this->in)) {
            $bytes .= fread($this->in, $length - strlen($bytes));
        }

        return $bytes;
    }

    /** Sends a message; false if artisand cannot receive it. */
    public function send($is, array $more = [])
    {
        // A child that a job forked must not answer for this process.
        if (! $this->isOpen || ! $this->isOurs() || ! is_resource($this->out)) {
            return false;
        }
        $flags = JSON_INVALID_UTF8_SUBSTITUTE | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE;
        $line = "{$this->key} {$this->orders} ".json_encode(['is' => $is] + $more, $flags)."\n";
        $sent = $failures = 0;
        while ($sent < strlen($line)) {
            try {
                $written = @fwrite($this->out, $sent === 0 ? $line : substr($line, $sent));
            } catch (\Throwable $problem) {
                // The app turns all warnings of PHP into exceptions.
                $written = false;
            }
            if ($written) {
                $sent += $written;
            } elseif (++$failures > 3) {
                // The write failed, and not only because of a signal.
                return $this->isOpen = false;
            }
        }

        return true;
    }

    public function isOurs()
    {
        return getmypid() === $this->owner;
    }

    public static function text($text)
    {
        return strlen($text) > self::LONGEST_TEXT ? substr($text, 0, self::LONGEST_TEXT) : $text;
    }
}

/** One process of the pool. */
class Member
{
    /** Number of ended jobs to remember: artisand records the end of a job within milliseconds. */
    const RECENT = 3;

    /** Seconds after which artisand has surely recorded the end of a job. */
    const RECENTLY = 10;

    public $app;

    public $worker;

    public $options;

    protected $channel;

    /** Where Laravel's worker looks for signals. */
    private $signals;

    private $settings;

    /** The last job that the worker got. */
    private $job;

    /** Previous jobs, whose end artisand may not have recorded before it sent the next one. */
    private $recent = [];

    /** Whether the worker still runs the job. */
    private $isRunning = false;

    /** Whether the job's own code runs, which may work a queue with the same worker (`queue:work`). */
    public $isInJob = false;

    /** Whether artisand knows that this process waits for the next job. */
    private $isReady = false;

    /** Whether the next job may be sent before this process is ready for it. */
    private $comesSoon = false;

    /** Whether artisand knows that this process is paused. */
    private $isPaused = false;

    /** Whether the worker's loop has begun a round since its last pop. */
    private $hasLooped = false;

    /** Laravel pops each of its queues in a round; true once all of them are answered. */
    private $isRoundOver = false;

    private $wasReady = 0.0;

    private $lastRestart;

    private $began;

    /** Settings of PHP that a job may change, and that are reset before the next one. */
    private $limits = [];

    public function __construct(Channel $channel, array $settings)
    {
        $this->channel = $channel;
        $this->settings = $settings;
    }

    public function run()
    {
        entitle('worker', $this->setting('queue', 'default'));
        $this->boot();
        define_classes();
        $this->listen();

        $connection = $this->setting('connection', 'redis');
        $queue = $this->app->make('queue')->connection($connection);
        $kinds = [
            \Illuminate\Queue\RedisQueue::class, \Illuminate\Queue\DatabaseQueue::class, \Illuminate\Queue\BeanstalkdQueue::class,
            \Illuminate\Queue\SqsQueue::class,
        ];
        if (array_filter($kinds, function ($kind) use ($queue) { return $queue instanceof $kind; }) === []) {
            throw new \RuntimeException(
                "queue connection `{$connection}` of the app is ".get_class($queue).', expected one of Redis, of a database, of beanstalkd or of SQS'
            );
        }
        $this->worker = $this->app->make('queue.worker');
        $this->worker->setManager(new Manager($this->app, $this, $this->channel, $queue, $connection));
        $this->worker->setName('default');
        $this->worker->setCache($this->signals = signals($this->app->make('cache')->driver()));
        $this->options = $this->options();
        $this->lastRestart = $this->asks(function () {
            return $this->getTimestampOfLastQueueRestart();
        });
        $this->limits = [ini_get('memory_limit'), (int) ini_get('max_execution_time')];
        register_shutdown_function(function () {
            $this->part();
        });

        $this->listenForPauses();
        $memory = \Illuminate\Queue\Worker::$memoryExceededExitCode ?? null;
        $this->channel->send('booted', [
            'laravel' => $this->app->version(), 'php' => PHP_VERSION, 'signals' => extension_loaded('pcntl'),
            'interruptible' => extension_loaded('pcntl') && interface_exists(\Illuminate\Contracts\Queue\Interruptible::class),
            // As the system reports it.
            'memory' => $memory === null ? null : (int) $memory & 255,
            'pid' => getmypid(),
            'clock' => hrtime(true),
        ]);

        $this->began = microtime(true);
        try {
            $status = (int) $this->worker->daemon($connection, $this->setting('queue', 'default'), $this->options);
        } finally {
            $this->comesRound();
        }

        return $this->terminate($status);
    }

    /** As at the end of a command. */
    protected function terminate($status)
    {
        $kernel = $this->app->make(\Illuminate\Contracts\Console\Kernel::class);
        $kernel->terminate(new \Symfony\Component\Console\Input\ArgvInput, $status);

        return $status;
    }

    public function setting($name, $default = null)
    {
        return isset($this->settings[$name]) ? $this->settings[$name] : $default;
    }

    protected function boot()
    {
        $base = $this->setting('app', '.');
        if (! is_dir($base)) {
            throw new \RuntimeException("PHP finds no directory {$base}: say where it sees the app, with `app` under [php]");
        }
        chdir($base);
        $base = getcwd();
        $composer = is_file($base.'/composer.json') ? json_decode(file_get_contents($base.'/composer.json'), true) : [];
        $vendor = isset($composer['config']['vendor-dir']) ? $composer['config']['vendor-dir'] : 'vendor';
        foreach (["{$vendor}/autoload.php", 'bootstrap/app.php'] as $file) {
            if (! is_file("{$base}/{$file}")) {
                throw new \RuntimeException("no `{$file}` in {$base}: is this the directory of a Laravel app, with its packages installed?");
            }
        }

        // Packages recognize a worker by its command line.
        $arguments = ['artisan', 'queue:work', $this->setting('connection', 'redis')];
        if ($this->setting('env') !== null) {
            $arguments[] = '--env='.$this->setting('env');
        }
        $_SERVER['argv'] = $GLOBALS['argv'] = $arguments;
        $_SERVER['argc'] = $GLOBALS['argc'] = count($arguments);
        $_SERVER['SCRIPT_NAME'] = $_SERVER['SCRIPT_FILENAME'] = $_SERVER['PHP_SELF'] = $_SERVER['PATH_TRANSLATED'] = 'artisan';
        defined('LARAVEL_START') || define('LARAVEL_START', microtime(true));

        require_once "{$base}/{$vendor}/autoload.php";
        $app = require "{$base}/bootstrap/app.php";
        if (! $app instanceof \Illuminate\Foundation\Application) {
            throw new \RuntimeException("`bootstrap/app.php` in {$base} does not return a Laravel application");
        }
        $this->app = $app;
        $this->attend();
        $app->make(\Illuminate\Contracts\Console\Kernel::class)->bootstrap();
    }

    /** Hears of each round of Laravel's loop before any listener of the app, which may end the round. */
    protected function attend()
    {
        $this->app->make('events')->listen(\Illuminate\Queue\Events\Looping::class, function () {
            if ($this->isInJob) {
                return null;
            }
            if ($this->hasLooped && ! $this->comesRound()) {
                // The previous round ended without a pop.
                $this->pauses();
            }
            $this->hasLooped = true;
            // As `queue:work --once`, which does not ask listeners.
            return $this->setting('once') ? true : null;
        });
    }

    /** Laravel's own options, by the names of their properties; some versions lack some of them. */
    private function options()
    {
        $options = new \Illuminate\Queue\WorkerOptions;
        foreach ($this->setting('options', []) as $name => $value) {
            if (property_exists($options, $name)) {
                $options->{$name} = $value;
            }
        }

        return $options;
    }

    /** A paused worker does not reach its next pop, so this reports the end of its job. */
    private function listenForPauses()
    {
        $comesRound = function () {
            $this->comesRound();
        };
        $this->asks(function () use ($comesRound) {
            $asks = $this->isDownForMaintenance;
            $this->isDownForMaintenance = function () use ($asks, $comesRound) {
                $isDown = $asks();
                if ($isDown) {
                    $comesRound();
                }

                return $isDown;
            };
        });
    }

    /** Reports that Laravel's loop is done with a job; false if there was none. */
    private function comesRound()
    {
        if (! $this->isRunning || $this->isInJob) {
            return false;
        }
        $this->isRunning = false;
        if ($this->channel->send('done')) {
            $this->job->isOver();
        }

        return true;
    }

    private function listen()
    {
        $events = $this->app->make('events');
        $events->listen(\Illuminate\Queue\Events\JobExceptionOccurred::class, function ($event) {
            if ($event->job instanceof Job && $this->runs($event->job)) {
                $this->channel->send('exception', described($event->exception));
            }
        });
        if (class_exists(\Illuminate\Queue\Events\JobTimedOut::class)) {
            $events->listen(\Illuminate\Queue\Events\JobTimedOut::class, function ($event) {
                if ($event->job instanceof Job && $this->runs($event->job)) {
                    $this->channel->send('timeout');
                }
            });
        }
    }

    /** Laravel's loop runs without a pop: another process may run a job that was sent here meanwhile. */
    private function pauses()
    {
        if (! $this->channel->isOurs()) {
            return;
        }
        if ($this->channel->hasNews()) {
            $order = $this->order();
            if ($order) {
                $this->channel->send('declined');
            } elseif ($order === null) {
                $this->worker->shouldQuit = true;
            }
        }
        if (! $this->isPaused) {
            $this->isPaused = true;
            $this->isReady = false;
            $this->channel->send('paused');
        }
    }

    /** Laravel's loop has begun a round and pops a job. */
    public function begin()
    {
        $this->isRoundOver = false;
        $this->options->sleep = $this->setting('options', [])['sleep'];
    }

    /** The result of `pop()` for Laravel's worker. */
    public function next(Manager $manager)
    {
        if ($this->isRoundOver) {
            return null;
        }
        $this->hasLooped = $this->isPaused = false;
        if (! $this->channel->isOurs()) {
            // A child that a job forked and that did not end.
            return $this->quit();
        }
        if ($this->setting('rest', 0) > 0 && $this->comesRound()) {
            $this->worker->sleep($this->setting('rest'));
        }
        $this->isRunning = false;
        if ($this->setting('max_time') !== null && microtime(true) - $this->began >= $this->setting('max_time')) {
            return $this->quit();
        }
        $this->restore();
        $isThere = $this->ready();
        $order = $this->worker->shouldQuit ? null : $this->order($isThere);
        if ($order === false) {
            // Laravel checks whether it has to stop, and pops again at once.
            return $this->pass();
        }
        if ($order === null) {
            return $this->quit();
        }
        [$body, $reserved, $queue, $isLate, $lease] = $order;
        $this->isReady = false;
        try {
            // Without artisand, no process renews the reservation.
            $mayRun = ! $isLate && ! $this->channel->isGone() && $this->mayRun();
        } catch (\Throwable $problem) {
            $this->isRoundOver = true;
            $this->channel->send('declined');

            throw $problem;
        }
        if (! $mayRun) {
            $this->channel->send('declined');

            return $this->pass();
        }
        $this->isRunning = true;
        // The check whether the job may run was no round.
        $this->hasLooped = false;

        if ($this->job !== null) {
            $this->job->forget();
            $this->recent = array_slice(array_merge($this->recent, [$this->job]), -self::RECENT);
        }

        return $this->job = $manager->job($body, $reserved, $queue, $lease);
    }

    /** Waits for a job; false if none came for a while, null if this process has to end. */
    private function order($isThere = false)
    {
        $order = $this->channel->receive($isThere);
        if ($order === false) {
            return false;
        }
        if ($order === null || ! isset($order['do']) || $order['do'] !== 'run') {
            return null;
        }
        // This process was stopped or paused when the job was sent: another worker may have it by now.
        $isLate = hrtime(true) >= $order['until'];
        $body = $this->channel->bytes($order['body']);
        $reserved = $this->channel->bytes($order['reserved']);
        if (strlen($reserved) !== $order['reserved']) {
            return null;
        }
        $this->channel->orders++;
        $this->comesSoon = $order['soon'];

        return [$body, $reserved, $order['queue'], $isLate, $order['lease']];
    }

    /** Whether artisand waits for the end of this job. */
    public function runs(Job $job)
    {
        return $this->isRunning && $this->job === $job;
    }

    /** Resets settings that a job may have changed, so that the next one has the right limits. */
    private function restore()
    {
        [$memory, $time] = $this->limits;
        $calls = [['ini_set', 'memory_limit', $memory], ['set_time_limit', $time]];
        if (extension_loaded('pcntl')) {
            $calls[] = ['pcntl_sigprocmask', SIG_UNBLOCK, [SIGALRM, SIGTERM, SIGQUIT, SIGUSR2, SIGCONT]];
            $calls[] = ['pcntl_async_signals', true];
        }
        foreach ($calls as $call) {
            $function = array_shift($call);
            try {
                @$function(...$call);
            } catch (\Throwable $problem) {
                // It is disabled (`disable_functions`), or the job uses more memory than the limit.
            }
        }
    }

    /** Tells artisand that this process waits, unless the next job comes soon; true if there is something to read. */
    private function ready()
    {
        $this->wasReady = microtime(true);
        if ($this->isReady) {
            return false;
        }
        $comesSoon = $this->comesSoon && $this->job !== null && $this->job->isDone();
        $isThere = $this->channel->hasNews(0, $comesSoon ? Channel::SOON : 0);
        // A next job is sent only after artisand has learned of the end of the last one.
        $isKnown = $isThere || ($this->isReady = $this->channel->send('ready', ['clock' => hrtime(true)]));
        if ($isKnown && $this->job !== null) {
            $this->job->isOver();
        }

        return $isThere;
    }

    /** Repeats Laravel's checks before a job if the last ones are some time ago. */
    private function mayRun()
    {
        if (microtime(true) - $this->wasReady < 0.05) {
            return true;
        }
        if ($this->signals instanceof Signals) {
            $this->signals->lookAgain();
        }
        [$connection, $queue, $options] = [$this->setting('connection'), $this->setting('queue'), $this->options];
        $lastRestart = $this->lastRestart;

        return $this->asks(function () use ($connection, $queue, $options, $lastRestart) {
            return ! $this->queueShouldRestart($lastRestart) && $this->daemonShouldRun($options, $connection, $queue);
        });
    }

    protected function asks(\Closure $question)
    {
        return $question->call($this->worker);
    }

    private function pass()
    {
        $this->isRoundOver = true;
        $this->options->sleep = 0;
    }

    private function quit()
    {
        $this->worker->shouldQuit = true;
        $this->part();

        return $this->pass();
    }

    /** Writes the ends of the last jobs if artisand has ended, which may not have written them. */
    private function part()
    {
        if ($this->job === null || ! $this->channel->isOurs() || ! $this->channel->isAbandoned()) {
            return;
        }
        foreach (array_merge($this->recent, [$this->job]) as $job) {
            try {
                $job->endAlone();
            } catch (\Throwable $problem) {
                report($this->app, $problem);
            }
        }
    }
}

/** Sets the title of this process, as `ps` shows it. */
function entitle($kind, $what)
{
    // Horizon ends foreign processes that have its name in their command line.
    $what = str_ireplace('horizon', 'hrzn', preg_replace('/[^\x21-\x7e]/', '?', substr($what, 0, 100)));
    if (function_exists('cli_set_process_title')) {
        @cli_set_process_title("artisand: php {$kind} ({$what})");
    }
}

function report($app, $problem)
{
    try {
        $app->make(\Illuminate\Contracts\Debug\ExceptionHandler::class)->report($problem);
    } catch (\Throwable $other) {
        fwrite(STDERR, $problem."\n");
    }
}

function described($exception)
{
    return ['class' => get_class($exception), 'message' => Channel::text($exception->getMessage())];
}

/**
 * The cache as the worker sees it: for a moment, it answers a repeated look for signals from memory.
 *
 * Laravel asks the cache for each job, which takes as long as a small job.
 */
function signals($cache)
{
    if (get_class($cache) !== \Illuminate\Cache\Repository::class) {
        return $cache;
    }
    // A type that some versions of PHP do not know.
    $type = (new \ReflectionMethod($cache, 'get'))->getReturnType();
    $type = $type === null ? '' : ": {$type}";
    eval('namespace Artisand\Pool;
    class Signals extends \Illuminate\Cache\Repository
    {
        private $seen = [];

        public static function from(\Illuminate\Cache\Repository $cache)
        {
            $signals = new self($cache->getStore());
            foreach (get_object_vars($cache) as $name => $value) {
                $signals->{$name} = $value;
            }

            return $signals;
        }

        public function get($key, $default = null)'.$type.'
        {
            if ($key !== "illuminate:queue:restart") {
                return parent::get($key, $default);
            }
            [$value, $at] = $this->seen[$key] ?? [null, 0];
            $now = microtime(true);
            if ($now < $at || $now - $at > MOMENT) {
                $this->seen[$key] = [$value = parent::get($key, $default), $now];
            }

            return $value;
        }

        public function lookAgain()
        {
            $this->seen = [];
        }
    }');

    return Signals::from($cache);
}

/** A job of one of the app's queues, whose end artisand records. */
interface Job
{
    /** Seconds before the end of the reservation that was sent with the job, from which on it may be renewed here. */
    const MARGIN = 10;
}

/** What jobs of all drivers have in common; a driver renews, moves and delays them. */
trait Reported
{
    private $member;

    private $channel;

    private $cause;

    /** The end of the job as reported to artisand. */
    private $end;

    /** Whether the app's store of failed jobs contains it. */
    private $isRecorded = false;

    /** Whether this process has written its end to the queue. */
    private $isEnded = false;

    /** When artisand learned that the job is over, on the clock of hrtime(). */
    private $overSince;

    /** Whether Laravel has deleted the job and is done with it. */
    private $isDone = false;

    /** Until when no other worker can get the job, on that clock; null for ever. */
    private $lease;

    public function reportTo(Member $member, Channel $channel, $lease)
    {
        $this->member = $member;
        $this->channel = $channel;
        $this->lease = $lease;

        return $this;
    }

    public function fire()
    {
        $this->member->isInJob = true;
        try {
            parent::fire();
        } finally {
            $this->member->isInJob = false;
        }
    }

    public function fail($e = null)
    {
        $this->staysOurs();
        $this->cause = $e ?: new \Illuminate\Queue\ManuallyFailedException;

        return parent::fail($this->cause);
    }

    /** Laravel calls this before it handles the job's lock, chain and batch. */
    public function isReleased()
    {
        $this->staysOurs();

        return parent::isReleased();
    }

    /** Laravel calls this before it handles an exception of the job. */
    public function hasFailed()
    {
        $this->staysOurs();

        return parent::hasFailed();
    }

    public function delete()
    {
        if ($this->deleted) {
            return;
        }
        // In Laravel, too, a job that was released earlier comes back.
        $isNews = $this->failed || ! $this->released;
        if (! $isNews || ! $this->channel->isOurs() || ($this->failed ? $this->saysFailed() : $this->saysDeleted())) {
            $this->deleted = true;

            return;
        }
        // artisand is gone, so this process has to end the job.
        $this->staysOurs();
        if ($this->failed && ! $this->isLogged()) {
            throw new \RuntimeException('the failed job could not be recorded: it stays reserved, and is run again');
        }
        $this->move();
        $this->deleted = true;
    }

    public function release($delay = 0)
    {
        $delay = $this->secondsUntil($delay);
        $isSaid = ! $this->channel->isOurs()
            || (! $this->deleted && $this->says('released', ['delay' => $delay]));
        if ($isSaid) {
            $this->released = true;

            return;
        }
        $due = time() + $delay;
        if ($this->deleted && $this->end !== null && ! $this->channel->isGone()) {
            // In Laravel, too, a job that was deleted earlier comes back; artisand deletes the reserved one.
            $this->comesBack($due);
            $this->released = true;

            return;
        }
        $this->staysOurs();
        $this->move($due);
        $this->released = true;
    }

    /** Reports the job's end to artisand; false if artisand is gone or expects another job. */
    private function says($is, array $more = [])
    {
        if (! $this->member->runs($this) || ! $this->channel->send($is, $more)) {
            return false;
        }
        $this->end = ['is' => $is, 'due' => time() + ($more['delay'] ?? 0), 'logged' => $more['logged'] ?? true];

        return true;
    }

    public function isDone()
    {
        return $this->isDone;
    }

    /** Notes that artisand knows that the job is over. */
    public function isOver()
    {
        $this->overSince = $this->overSince ?: hrtime(true);
    }

    /** Frees the job's object. */
    public function forget()
    {
        $this->instance = null;
    }

    /** Writes the reported end to the queue if artisand may not have done it and the job is still reserved. */
    public function endAlone()
    {
        $isLongOver = $this->overSince !== null && hrtime(true) - $this->overSince > Member::RECENTLY * 1000000000;
        if ($this->end === null || $isLongOver) {
            return;
        }
        if ($this->end['logged'] || ($this->renew() && $this->isLogged())) {
            $this->move($this->end['is'] === 'released' ? $this->end['due'] : null);
        }
        $this->end = null;
    }

    /**
     * Ends the process if artisand has ended and the job is no longer reserved: another worker may run it.
     *
     * Otherwise Laravel's work for an ended job (its chain, its batch, its locks) would be done twice.
     */
    private function staysOurs()
    {
        // An ended job is no longer reserved.
        if ($this->end !== null || $this->isEnded || ! $this->member->runs($this)) {
            return;
        }
        if ($this->lease === null || hrtime(true) < $this->lease - self::MARGIN * 1000000000) {
            // Nor can another worker have the job for a while, even if artisand has ended.
            return;
        }
        if (! $this->channel->isOurs() || ! $this->channel->isGone() || $this->renew()) {
            return;
        }
        fwrite(STDERR, "artisand has ended and the reservation of its job, too: this process ends\n");
        if (function_exists('posix_kill')) {
            posix_kill(getpid(), SIGKILL);
        }
        exit(1);
    }

    private function saysDeleted()
    {
        // If Laravel deletes the job, the job is done; a job that deletes itself continues to run.
        $caller = debug_backtrace(DEBUG_BACKTRACE_IGNORE_ARGS, 3)[2] ?? [];
        $this->isDone = ($caller['class'] ?? '') === \Illuminate\Queue\CallQueuedHandler::class;

        return $this->isDone
            ? $this->says('deleted', ['last' => true])
            : $this->says('deleted') && $this->isSettled();
    }

    /** Reports the failure and waits until artisand has recorded it; false if this process has to do that. */
    private function saysFailed()
    {
        $failer = $this->container->make('queue.failer');
        // If the store has another class than artisand expects, only PHP can write to it.
        $isForArtisand = get_class($failer) === $this->member->setting('failer');
        $this->cause = $this->cause ?: new \Illuminate\Queue\ManuallyFailedException;
        $isLogged = ! $isForArtisand && $this->isLogged();
        $isSaid = $this->says('failed', described($this->cause) + [
            'exception' => Channel::text((string) $this->cause), 'logged' => $isLogged,
        ]);

        return $isSaid && $this->isSettled();
    }

    private function isSettled()
    {
        // The wait for artisand does not count towards the job's timeout.
        $left = extension_loaded('pcntl') ? pcntl_alarm(0) : 0;
        try {
            $isSettled = $this->channel->answer();
        } finally {
            if ($left > 0) {
                pcntl_alarm($left);
            }
        }
        if ($isSettled === false) {
            // As in Laravel when the queue throws: a job that stays gets no `failed()`, lock or batch.
            throw new \RuntimeException('the end of the job could not be written down in its queue');
        }
        if ($isSettled) {
            return true;
        }
        $mayBeTaken = $this->lease !== null && hrtime(true) >= $this->lease;
        if (! $mayBeTaken && $this->renew() === false) {
            // No other worker has the job, so artisand wrote its end down before it ended.
            return true;
        }
        $this->end = null;

        return false;
    }

    private function isLogged()
    {
        if ($this->isRecorded) {
            return true;
        }
        $cause = $this->cause ?: new \Illuminate\Queue\ManuallyFailedException;
        try {
            $failer = $this->container->make('queue.failer');
            $failer->log($this->connectionName, $this->queue, $this->getRawBody(), $cause);

            return $this->isRecorded = true;
        } catch (\Throwable $problem) {
            report($this->container, $problem);

            return false;
        }
    }
}

/** Defines classes that extend Laravel's, which exist only once the app is booted. */
function define_classes()
{
    /** The connections as the worker sees them: jobs of each come from artisand, but for a job that works a queue itself. */
    class Manager extends \Illuminate\Queue\QueueManager
    {
        private $member;

        private $channel;

        private $queue;

        private $pool;

        /** The paused queues, the time of the look, and the queues looked at. */
        private $paused = [[], 0, null];

        public function __construct($app, Member $member, Channel $channel, $queue, $connection)
        {
            parent::__construct($app);
            $this->member = $member;
            $this->channel = $channel;
            $this->queue = $queue;
            $this->pool = new Queue($member, $this);
            $this->pool->setConnectionName($connection);
        }

        public function connection($name = null)
        {
            if ($this->member->isInJob) {
                return $this->app->make('queue')->connection($name);
            }
            $this->member->begin();

            return $this->pool;
        }

        /** As with the restart signal, the result of a moment ago is reused. */
        public function getPausedQueues($connection, $queues)
        {
            [$paused, $at, $of] = $this->paused;
            $now = microtime(true);
            if ($of !== $queues || $now < $at || $now - $at > MOMENT) {
                $this->paused = [$paused = parent::getPausedQueues($connection, $queues), $now, $queues];
            }

            return $paused;
        }

        public function job($body, $reserved, $queue, $lease)
        {
            $connection = $this->pool->getConnectionName();

            $class = $this->queue instanceof \Illuminate\Queue\DatabaseQueue ? DatabaseJob::class : RedisJob::class;
            if ($this->queue instanceof \Illuminate\Queue\BeanstalkdQueue) {
                $class = BeanstalkdJob::class;
            } elseif ($this->queue instanceof \Illuminate\Queue\SqsQueue) {
                $class = SqsJob::class;
            }
            $job = $class::of($this->app, $this->queue, $body, $reserved, $connection, $queue);

            return $job->reportTo($this->member, $this->channel, $lease);
        }
    }

    /** A queue whose jobs come from artisand. */
    class Queue extends \Illuminate\Queue\NullQueue
    {
        private $member;

        private $manager;

        public function __construct(Member $member, Manager $manager)
        {
            $this->member = $member;
            $this->manager = $manager;
        }

        public function pop($queue = null)
        {
            return $this->member->next($this->manager);
        }
    }

    /** A job of the app's Redis queue, whose end artisand records. */
    class RedisJob extends \Illuminate\Queue\Jobs\RedisJob implements Job
    {
        use Reported;

        public static function of($app, $queue, $body, $reserved, $connection, $name)
        {
            return new self($app, $queue, $body, $reserved, $connection, $name);
        }

        /** Laravel decodes the body anew with each question about it. */
        public function payload()
        {
            return $this->decoded ?: parent::payload();
        }

        /** The key of the queue's list. On a cluster, `getQueue()` of Laravel 13.5 and later gives another one. */
        private function listKey()
        {
            $key = function ($queue) {
                return method_exists($this, 'getQueueRedisKey') ? $this->getQueueRedisKey($queue) : $this->getQueue($queue);
            };

            return $key->call($this->redis, $this->queue);
        }

        /** Renews the reservation for the time of one end; false if it is gone, null if Redis does not answer. */
        protected function renew()
        {
            $script = "local ends = redis.call('zscore', KEYS[1], ARGV[1]) if not ends then return 0 end "
                ."if tonumber(ends) < tonumber(ARGV[2]) then redis.call('zadd', KEYS[1], ARGV[2], ARGV[1]) end return 1";
            $reserved = $this->listKey().':reserved';
            try {
                return (bool) $this->redis->getConnection()->eval($script, 1, $reserved, $this->reserved, time() + 10);
            } catch (\Throwable $problem) {
                report($this->container, $problem);

                return null;
            }
        }

        /** Removes the job from the reserved ones, if it is there; with $due, delays it until that second. */
        protected function move($due = null)
        {
            $script = "if not redis.call('zscore', KEYS[2], ARGV[1]) then return 0 end "
                ."if ARGV[2] ~= '' then redis.call('zadd', KEYS[1], ARGV[2], ARGV[1]) end "
                ."return redis.call('zrem', KEYS[2], ARGV[1])";
            $list = $this->listKey();
            $keys = [$list.':delayed', $list.':reserved'];
            $this->redis->getConnection()->eval($script, 2, $keys[0], $keys[1], $this->reserved, (string) $due);
            $this->isEnded = true;
        }

        /** Delays the job that was deleted. */
        protected function comesBack($due)
        {
            $script = "return redis.call('zadd', KEYS[1], ARGV[1], ARGV[2])";
            $delayed = $this->listKey().':delayed';
            $this->redis->getConnection()->eval($script, 1, $delayed, $due, $this->reserved);
        }
    }

    /** A job in the app's table, whose end artisand records. */
    class DatabaseJob extends \Illuminate\Queue\Jobs\DatabaseJob implements Job
    {
        use Reported;

        private $decoded;

        public static function of($app, $queue, $body, $reserved, $connection, $name)
        {
            [$id, $attempts] = explode(':', $reserved);
            $record = ['id' => (int) $id, 'attempts' => (int) $attempts, 'queue' => $name, 'payload' => $body];
            $record = new \Illuminate\Queue\Jobs\DatabaseJobRecord((object) $record);

            return new self($app, $queue, $record, $connection, $name);
        }

        /** Laravel decodes the body anew with each question about it. */
        public function payload()
        {
            return $this->decoded ?: $this->decoded = parent::payload();
        }

        private function setting($name, $default = null)
        {
            $value = $this->container->make('config')->get("queue.connections.{$this->connectionName}.{$name}");

            return $value === null ? $default : $value;
        }

        private function table()
        {
            return $this->database->getDatabase()->table($this->setting('table'));
        }

        /** The row, as long as it is this reservation's. */
        private function row()
        {
            return $this->table()->useWritePdo()->where('id', $this->job->id)->where('attempts', $this->job->attempts)
                ->whereNotNull('reserved_at');
        }

        /** Renews the reservation for the time of one end; false if it is gone, null if the database does not answer. */
        protected function renew()
        {
            $least = time() + 10 - (int) $this->setting('retry_after', 60);
            try {
                if (! $this->row()->exists()) {
                    return false;
                }
                $this->row()->where('reserved_at', '<', $least)->update(['reserved_at' => $least]);

                return true;
            } catch (\Throwable $problem) {
                report($this->container, $problem);

                return null;
            }
        }

        /** Removes the job's row, if it is still this reservation's; with $due, the job is due at that second. */
        protected function move($due = null)
        {
            $this->database->getDatabase()->transaction(function () use ($due) {
                $row = $this->row()->lockForUpdate()->first();
                if ($row === null) {
                    return;
                }
                if ($due !== null) {
                    $this->insert($due, $row->queue);
                }
                $this->table()->where('id', $this->job->id)->delete();
            });
            $this->isEnded = true;
        }

        /** Delays the job that was deleted. */
        protected function comesBack($due)
        {
            $this->insert($due, $this->queue);
        }

        private function insert($due, $queue)
        {
            $this->table()->insert([
                'queue' => $queue, 'attempts' => $this->job->attempts, 'reserved_at' => null,
                'available_at' => $due, 'created_at' => time(), 'payload' => $this->job->payload,
            ]);
        }
    }

    /** What jobs have in common that no process but artisand ends: once artisand is gone, the next worker runs them. */
    trait EndedByArtisand
    {
        use Reported {
            reportTo as private report;
        }

        public function reportTo(Member $member, Channel $channel, $lease)
        {
            return $this->report($member, $channel, 0);
        }

        /** Without artisand the reservation is gone. */
        protected function renew()
        {
            return false;
        }

        /** The server does it: the job is ready again. */
        protected function move($due = null)
        {
            $this->isEnded = true;
        }

        protected function comesBack($due)
        {
            throw new \RuntimeException('the job is deleted, and its server cannot release it');
        }
    }

    /**
     * A job of a beanstalkd: the server hears of its end from no other connection.
     *
     * Once artisand has ended, the server gives the job to the next worker at once.
     */
    class BeanstalkdJob extends \Illuminate\Queue\Jobs\BeanstalkdJob implements Job
    {
        use EndedByArtisand;

        private $attempts;

        private $decoded;

        public static function of($app, $queue, $body, $reserved, $connection, $name)
        {
            [$id, $attempts] = explode(':', $reserved);
            // The client's class has another name, and takes an object, since pheanstalk 5.
            $job = class_exists(\Pheanstalk\Values\Job::class)
                ? new \Pheanstalk\Values\Job(new \Pheanstalk\Values\JobId($id), $body)
                : new \Pheanstalk\Job((int) $id, $body);
            $made = new self($app, $queue->getPheanstalk(), $job, $connection, $name);
            $made->attempts = (int) $attempts;

            return $made;
        }

        public function attempts()
        {
            return $this->attempts;
        }

        /** Laravel decodes the body anew with each question about it. */
        public function payload()
        {
            return $this->decoded ?: $this->decoded = parent::payload();
        }

        public function bury()
        {
            throw new \LogicException('a job that artisand has reserved cannot be buried from PHP: let it fail');
        }
    }

    /**
     * A message of SQS, whose end artisand notes in its ledger before the message is deleted.
     *
     * Once artisand has ended, the message is visible again when its reservation ends.
     */
    class SqsJob extends \Illuminate\Queue\Jobs\SqsJob implements Job
    {
        use EndedByArtisand;

        private $decoded;

        public static function of($app, $queue, $body, $reserved, $connection, $name)
        {
            [$id, $attempts, $receipt] = explode(':', $reserved, 3);
            $message = [
                'MessageId' => $id, 'ReceiptHandle' => $receipt, 'Body' => $body,
                'Attributes' => ['ApproximateReceiveCount' => $attempts],
            ];

            return new self($app, $queue->getSqs(), $message, $connection, $queue->getQueue($name));
        }

        /** Laravel decodes the body anew with each question about it. */
        public function payload()
        {
            return $this->decoded ?: $this->decoded = parent::payload();
        }
    }
}

function main()
{
    $channel = new Channel;
    do {
        $settings = $channel->receive();
    } while ($settings === false);
    if (! is_array($settings)) {
        exit(0);
    }
    $channel->open($settings['key']);
    $member = isset($settings['serves']) ? new Helper($channel, $settings) : new Member($channel, $settings);
    try {
        $status = $member->run();
    } catch (\Throwable $problem) {
        if ($member->app !== null) {
            report($member->app, $problem);
        }
        $message = $problem->getMessage().' ('.$problem->getFile().':'.$problem->getLine().')';
        $channel->send('unbootable', ['message' => get_class($problem).': '.$message]);
        $status = 1;
    }
    exit($status);
}

main();
