<?php

/**
 * Runs jobs that `artisand` has reserved, in the app's own PHP, with Laravel's own worker.
 *
 * One process is one member of the pool. It boots the app once and then runs
 * `Illuminate\Queue\Worker::daemon`, as `php artisan queue:work` does. Only the
 * queue is another: `pop()` waits for a job on a socket, and what happens to the
 * job (deleted, released, failed) is said there instead of being done in Redis.
 * The rest is Laravel: middleware, chains, batches, locks, `failed()`, events,
 * timeouts, and when to stop.
 *
 * The socket is file descriptor 3. Each side writes lines of JSON. From artisand:
 *
 *   {"app": "/srv/app", "connection": "redis", "queue": "default", ...}   once, see Member::boot
 *   {"do": "run", "queue": "default", "body": 650, "reserved": 650, "until": 81500000000, "lease": 90500000000}
 *                          then so many bytes; not begun if it is read at `until` of `hrtime()` or later; until
 *                          `lease` no other worker can have the job (null if it is always so)
 *   {"do": "settled", "settled": true}   the answer to `failed`: whether that is written down
 *   {"do": "stop"}
 *
 * From here, each line begins with the `key` of the first line and the number of orders read so far: other processes
 * that write to this descriptor (programs that a job started) are told from us by that. Then comes JSON in which `is`
 * says what it is about:
 *
 *   booted     the app has booted; versions `laravel` and `php`, `signals` if it hears SIGTERM, `interruptible` if it
 *              passes signals on to its job, `clock` in nanoseconds
 *   ready      waiting for a job; `memory` in bytes, `clock`, `orders` read so far. Not while the worker is to pause
 *   paused     Laravel's loop comes round and may not ask for a job: a listener of Looping, all queues paused
 *   declined   the job is not begun, as the worker is to pause (down, or a listener of Looping) or to restart,
 *              or as it came too late
 *   deleted (`last` if Laravel is done with the job), released (`delay`), failed (`exception` as Laravel
 *              records it, `class`, `message`, `logged` if it is in the app's store already). What Laravel does behind
 *              a failure (`failed()`, locks, batches) waits for the answer
 *   exception  the attempt threw (`class`, `message`)
 *   timeout    the attempt ran too long
 *   done       the attempt is over, and Laravel's loop has come round; `ready` says that, too
 *   parting    nothing: whether that can be said shows whether artisand is there
 *   unbootable the app cannot be booted (`message`)
 *
 * What is said of a job is of the one that was sent last, or it is not said.
 *
 * If artisand is gone, this process ends its job in Redis by itself, but only
 * while the job is still reserved: once the reservation has ended another worker
 * may run the job, and this process kills itself before it does anything more
 * for it. The job before is ended in the same way, if artisand may have heard of
 * its end and not written it down. It has a second for that: then artisand's
 * supervisor kills it. PHP 7.3 and later, Laravel 8 to 13.
 */

namespace Artisand\Pool;

/** Seconds for which a signal counts as just looked for. */
const MOMENT = 0.005;

/** The socket to artisand. */
class Channel
{
    const LONGEST_TEXT = 1 << 20;

    /** Seconds without a job after which Laravel's loop comes round, to see whether it is to stop. */
    const PATIENCE = 3;

    private $in;

    private $out;

    private $owner;

    private $isOpen = true;

    /** What tells our lines from those of others. */
    private $key = '-';

    /** How many jobs were read. */
    public $orders = 0;

    public function __construct()
    {
        // Where this text was read from; it may have read further.
        $this->in = $GLOBALS['artisand'];
        $this->out = fopen('php://fd/3', 'wb');
        $this->owner = getmypid();
        stream_set_write_buffer($this->out, 0);
    }

    /** Waits for a line; null if there will be none, false if none came for a while or a signal did. */
    public function receive()
    {
        // A job may have closed all that is open.
        if (! $this->isOpen || ! is_resource($this->in)) {
            return $this->close();
        }
        if (! $this->hasNews(self::PATIENCE)) {
            return false;
        }
        $line = fgets($this->in);

        return $line === false ? $this->close() : json_decode($line, true);
    }

    /** Whether there is something to read, or will be within so many seconds. */
    public function hasNews($patience = 0)
    {
        if (! is_resource($this->in)) {
            return true;
        }
        // A line that was read together with another: select would not see it.
        if (stream_get_meta_data($this->in)['unread_bytes'] > 0) {
            return true;
        }
        $ready = [$this->in];
        $none = null;

        return (bool) @stream_select($ready, $none, $none, $patience);
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

    /** Whether artisand has ended. What is on its way from there stays unread. */
    public function isAbandoned()
    {
        return ! $this->send('parting');
    }

    /** The same, at the cost of one look while artisand lives and has sent nothing. */
    public function isGone()
    {
        return ! $this->isOpen || ($this->hasNews() && $this->isAbandoned());
    }

    /** Waits until artisand says whether what it was told is written down; null if it has ended. */
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

    /** Says something; false if nobody hears it. */
    public function send($is, array $more = [])
    {
        // A child that a job forked is not the one who is asked.
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
                // The app makes exceptions of all that PHP complains about.
                $written = false;
            }
            if ($written) {
                $sent += $written;
            } elseif (++$failures > 3) {
                // Not only a signal that came in between.
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
    /** How many jobs are remembered: artisand writes down the end of one within milliseconds. */
    const RECENT = 3;

    /** Seconds after it was told that one is over, after which it has written that down. */
    const RECENTLY = 10;

    public $app;

    public $worker;

    public $options;

    private $channel;

    /** Where Laravel's worker looks for signals. */
    private $signals;

    private $settings;

    /** The job that was given to the worker last. */
    private $job;

    /** Jobs before it, whose end artisand may not have written down before it gave us the next one. */
    private $recent = [];

    /** Whether it has not come round. */
    private $isRunning = false;

    /** Whether artisand was told that we wait for what it has not sent yet. */
    private $isReady = false;

    /** Whether it was told that we may not ask for jobs. */
    private $isPaused = false;

    /** Whether the worker's loop has begun a round since its last pop. */
    private $hasLooped = false;

    /** Laravel asks once for each of its queues; this says that it was answered for all of them. */
    private $isRoundOver = false;

    private $wasReady = 0.0;

    private $lastRestart;

    private $began;

    /** Settings of PHP that a job may change, and that the next one is not to suffer from. */
    private $limits = [];

    public function __construct(Channel $channel)
    {
        $this->channel = $channel;
    }

    public function run()
    {
        do {
            $settings = $this->channel->receive();
        } while ($settings === false);
        if (! is_array($settings)) {
            return 0;
        }
        $this->settings = $settings;
        $this->channel->open($this->setting('key', '-'));
        entitle($this->setting('queue', 'default'));
        $this->boot();
        define_classes();
        $this->listen();

        $connection = $this->setting('connection', 'redis');
        $queue = $this->app->make('queue')->connection($connection);
        if (! $queue instanceof \Illuminate\Queue\RedisQueue) {
            throw new \RuntimeException(
                "queue connection `{$connection}` of the app is ".get_class($queue).', expected one of Redis'
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
        $this->channel->send('booted', [
            'laravel' => $this->app->version(), 'php' => PHP_VERSION, 'signals' => extension_loaded('pcntl'),
            'interruptible' => extension_loaded('pcntl') && interface_exists(\Illuminate\Contracts\Queue\Interruptible::class),
            'clock' => hrtime(true),
        ]);

        $this->began = microtime(true);
        try {
            $status = (int) $this->worker->daemon($connection, $this->setting('queue', 'default'), $this->options);
        } finally {
            $this->comesRound();
        }
        // As at the end of a command.
        $kernel = $this->app->make(\Illuminate\Contracts\Console\Kernel::class);
        $kernel->terminate(new \Symfony\Component\Console\Input\ArgvInput, $status);

        return $status;
    }

    public function setting($name, $default = null)
    {
        return isset($this->settings[$name]) ? $this->settings[$name] : $default;
    }

    private function boot()
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

        // Packages look at the command line to see that this is a worker.
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
        // Before any listener of the app's, which may end the round.
        $app->make('events')->listen(\Illuminate\Queue\Events\Looping::class, function () {
            if ($this->hasLooped && ! $this->comesRound()) {
                // The round before it ended without a pop.
                $this->pauses();
            }
            $this->hasLooped = true;
            // As `queue:work --once`, which does not ask.
            return $this->setting('once') ? true : null;
        });
        $app->make(\Illuminate\Contracts\Console\Kernel::class)->bootstrap();
    }

    /** Laravel's own options, by the names of its properties: not all versions have all of them. */
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

    /** A worker that is to pause does not come round to its next pop: the job is over nevertheless. */
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

    /** Says that Laravel's loop is done with a job; false if there was none. */
    private function comesRound()
    {
        if (! $this->isRunning) {
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

    /** Laravel's loop comes round, and there was no pop: what we are given meanwhile somebody else may do. */
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

    /** Laravel's loop has come round and asks for a job. */
    public function begin()
    {
        $this->isRoundOver = false;
        $this->options->sleep = $this->setting('options', [])['sleep'];
    }

    /** What `pop()` gives to Laravel's worker. */
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
        $this->ready();
        $order = $this->worker->shouldQuit ? null : $this->order();
        if ($order === false) {
            // Laravel looks whether it is to stop, and comes back at once.
            return $this->pass();
        }
        if ($order === null) {
            return $this->quit();
        }
        [$body, $reserved, $queue, $isLate, $lease] = $order;
        $this->isReady = false;
        try {
            // Without artisand the reservation is not renewed.
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
        // To ask whether it may run was no round.
        $this->hasLooped = false;

        if ($this->job !== null) {
            $this->job->forget();
            $this->recent = array_slice(array_merge($this->recent, [$this->job]), -self::RECENT);
        }

        return $this->job = $manager->job($body, $reserved, $queue, $lease);
    }

    /** Waits for a job; false if none came for a while, null if we are to end. */
    private function order()
    {
        $order = $this->channel->receive();
        if ($order === false) {
            return false;
        }
        if ($order === null || ! isset($order['do']) || $order['do'] !== 'run') {
            return null;
        }
        // A process that was stopped, or in a pause, when it was sent: it may be somebody else's by now.
        $isLate = hrtime(true) >= $order['until'];
        $body = $this->channel->bytes($order['body']);
        $reserved = $this->channel->bytes($order['reserved']);
        if (strlen($reserved) !== $order['reserved']) {
            return null;
        }
        $this->channel->orders++;

        return [$body, $reserved, $order['queue'], $isLate, $order['lease']];
    }

    /** Whether it is this job that artisand waits for. */
    public function runs(Job $job)
    {
        return $this->isRunning && $this->job === $job;
    }

    /** Undoes what a job may have done to the process, so that the next one has its limits and no others. */
    private function restore()
    {
        [$memory, $time] = $this->limits;
        ini_set('memory_limit', $memory);
        set_time_limit($time);
        if (extension_loaded('pcntl')) {
            pcntl_sigprocmask(SIG_UNBLOCK, [SIGALRM, SIGTERM, SIGQUIT, SIGUSR2, SIGCONT]);
            pcntl_async_signals(true);
        }
    }

    private function ready()
    {
        $this->wasReady = microtime(true);
        if ($this->isReady) {
            return;
        }
        $this->isReady = true;
        $isHeard = $this->channel->send('ready', [
            'memory' => memory_get_usage(true), 'clock' => hrtime(true),
        ]);
        if ($isHeard && $this->job !== null) {
            $this->job->isOver();
        }
    }

    /** Asks Laravel again what it asked before it waited, if that is some time ago. */
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

    private function asks(\Closure $question)
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

    /** If artisand has ended, nobody else may have written down what became of the last jobs. */
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

/** Says in the list of processes what this one is. */
function entitle($queue)
{
    // Horizon ends processes that have its name in their command line and are none of its own.
    $queue = str_ireplace('horizon', 'hrzn', preg_replace('/[^\x21-\x7e]/', '?', substr($queue, 0, 100)));
    if (function_exists('cli_set_process_title')) {
        @cli_set_process_title("artisand: php worker ({$queue})");
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
 * The cache as the worker sees it: signals that were looked for a moment ago are not looked for again.
 *
 * Laravel asks the cache around each job, which takes as long as a small job does.
 */
function signals($cache)
{
    if (get_class($cache) !== \Illuminate\Cache\Repository::class) {
        return $cache;
    }
    // Of a type that not all versions of PHP know.
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

/** Classes that need Laravel's, which are there only once the app is booted. */
function define_classes()
{
    /** The connections as the worker sees them: whichever it asks for, jobs come from artisand. */
    class Manager extends \Illuminate\Queue\QueueManager
    {
        private $member;

        private $channel;

        private $redis;

        private $pool;

        /** Queues that are paused, when that was seen, and of which. */
        private $paused = [[], 0, null];

        public function __construct($app, Member $member, Channel $channel, $redis, $connection)
        {
            parent::__construct($app);
            $this->member = $member;
            $this->channel = $channel;
            $this->redis = $redis;
            $this->pool = new Queue($member, $this);
            $this->pool->setConnectionName($connection);
        }

        public function connection($name = null)
        {
            $this->member->begin();

            return $this->pool;
        }

        /** As for the signal to restart: what was seen a moment ago holds. */
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

            $job = new Job($this->app, $this->redis, $body, $reserved, $connection, $queue);

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

    /** A job of the app's Redis queue, whose end artisand writes down. */
    class Job extends \Illuminate\Queue\Jobs\RedisJob
    {
        private $member;

        private $channel;

        private $cause;

        /** What artisand was told of its end. */
        private $end;

        /** Whether the app's store of failed jobs has it. */
        private $isRecorded = false;

        /** Whether this process has ended it in Redis. */
        private $isEnded = false;

        /** When it was told that there is no more to come, on the clock of hrtime(). */
        private $overSince;

        /** Until when no other worker can have the job, on that clock; null for ever. */
        private $lease;

        public function reportTo(Member $member, Channel $channel, $lease)
        {
            $this->member = $member;
            $this->channel = $channel;
            $this->lease = $lease;

            return $this;
        }

        public function fail($e = null)
        {
            $this->staysOurs();
            $this->cause = $e ?: new \Illuminate\Queue\ManuallyFailedException;

            return parent::fail($this->cause);
        }

        /** Laravel asks this before it does what follows a job: its lock, its chain, its batch. */
        public function isReleased()
        {
            $this->staysOurs();

            return parent::isReleased();
        }

        /** Laravel asks this before it judges what a job threw. */
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
            // In Laravel, too, a job that was released before that comes back.
            $isNews = $this->failed || ! $this->released;
            if (! $isNews || ! $this->channel->isOurs() || ($this->failed ? $this->saysFailed() : $this->saysDeleted())) {
                $this->deleted = true;

                return;
            }
            // artisand is gone: the end of the job falls to this process.
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
                // In Laravel, too, a job that was deleted before that comes back; what is reserved artisand deletes.
                $script = "return redis.call('zadd', KEYS[1], ARGV[1], ARGV[2])";
                $delayed = $this->redis->getQueue($this->queue).':delayed';
                $this->redis->getConnection()->eval($script, 1, $delayed, $due, $this->reserved);
                $this->released = true;

                return;
            }
            $this->staysOurs();
            $this->move($due);
            $this->released = true;
        }

        /** Tells artisand how it ended; false if that is not to be heard, or not of this job any more. */
        private function says($is, array $more = [])
        {
            if (! $this->member->runs($this) || ! $this->channel->send($is, $more)) {
                return false;
            }
            $this->end = ['is' => $is, 'due' => time() + ($more['delay'] ?? 0), 'logged' => $more['logged'] ?? true];

            return true;
        }

        /** artisand knows that it is over. */
        public function isOver()
        {
            $this->overSince = $this->overSince ?: hrtime(true);
        }

        /** Lets go of what the job was. */
        public function forget()
        {
            $this->instance = null;
        }

        /** Does what artisand was told and may not have done, if the job is reserved still. */
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
         * Ends the process if artisand has ended and the job is not reserved any more: another worker may run it.
         *
         * What Laravel does for a job that has ended (its chain, its batch, its locks) would be done twice.
         */
        private function staysOurs()
        {
            // What has ended is not reserved any more.
            if ($this->end !== null || $this->isEnded || ! $this->member->runs($this)) {
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

        /** Keeps the reservation for as long as an end takes; false if it is gone, null if Redis cannot be asked. */
        private function renew()
        {
            $script = "local ends = redis.call('zscore', KEYS[1], ARGV[1]) if not ends then return 0 end "
                ."if tonumber(ends) < tonumber(ARGV[2]) then redis.call('zadd', KEYS[1], ARGV[2], ARGV[1]) end return 1";
            $reserved = $this->redis->getQueue($this->queue).':reserved';
            try {
                return (bool) $this->redis->getConnection()->eval($script, 1, $reserved, $this->reserved, time() + 10);
            } catch (\Throwable $problem) {
                report($this->container, $problem);

                return null;
            }
        }

        /** Takes the job out of the reserved ones, to be due at this second if it is to come back; only if it is one. */
        private function move($due = null)
        {
            $script = "if not redis.call('zscore', KEYS[2], ARGV[1]) then return 0 end "
                ."if ARGV[2] ~= '' then redis.call('zadd', KEYS[1], ARGV[2], ARGV[1]) end "
                ."return redis.call('zrem', KEYS[2], ARGV[1])";
            $queue = $this->redis->getQueue($this->queue);
            $keys = [$queue.':delayed', $queue.':reserved'];
            $this->redis->getConnection()->eval($script, 2, $keys[0], $keys[1], $this->reserved, (string) $due);
            $this->isEnded = true;
        }

        private function saysDeleted()
        {
            // What Laravel deletes has done all it had to; a job that deletes itself runs on.
            $caller = debug_backtrace(DEBUG_BACKTRACE_IGNORE_ARGS, 3)[2] ?? [];
            $isLast = ($caller['class'] ?? '') === \Illuminate\Queue\CallQueuedHandler::class;

            return $this->says('deleted', $isLast ? ['last' => true] : []);
        }

        /** Says that the job has failed, and waits until that is written down; false if it has to be done here. */
        private function saysFailed()
        {
            $failer = $this->container->make('queue.failer');
            // A store of another class than artisand takes it for is one that only PHP can write.
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
            // The time that artisand takes is not the job's.
            $left = extension_loaded('pcntl') ? pcntl_alarm(0) : 0;
            try {
                $isSettled = $this->channel->answer();
            } finally {
                if ($left > 0) {
                    pcntl_alarm($left);
                }
            }
            if ($isSettled === false) {
                // As in Laravel, where Redis throws: nothing that follows a failure is done for a job that stays.
                throw new \RuntimeException('the failure of the job could not be written down in its queue');
            }
            if ($isSettled) {
                return true;
            }
            $mayBeTaken = $this->lease !== null && hrtime(true) >= $this->lease;
            if (! $mayBeTaken && $this->renew() === false) {
                // No other worker can have it: artisand has written it down, and then ended.
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
}

function main()
{
    $channel = new Channel;
    $member = new Member($channel);
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
