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
 * The socket is standard input. Each side writes lines of JSON. From artisand:
 *
 *   {"app": "/srv/app", "connection": "redis", "queue": "default", ...}   once, see Member::boot
 *   {"do": "run", "queue": "default", "body": 650, "reserved": 650}       then so many bytes
 *   {"do": "stop"}
 *
 * From here, `is` says what it is about:
 *
 *   ready      waiting for a job; `laravel` and `php` with the first one, `memory` in bytes
 *   declined   the job is not begun, as the worker is to pause (down, or a listener of Looping)
 *   deleted, released (`delay`), failed (`exception` as Laravel records it, `class`, `message`, `logged`)
 *   exception  the attempt threw (`class`, `message`)
 *   timeout    the attempt ran too long
 *   done       the attempt is over, and Laravel's loop has come round; `ready` says that, too
 *   unbootable the app cannot be booted (`message`)
 *
 * If artisand is gone, the job that runs is ended as without it: by this
 * process, in Redis. PHP 7.3 and later, Laravel 8 to 13.
 */

namespace Artisand\Pool;

/** The socket to artisand. */
class Channel
{
    const LONGEST_TEXT = 1 << 20;

    private $in;

    private $out;

    private $owner;

    private $isOpen = true;

    public function __construct()
    {
        // Where this text was read from; it may have read further.
        $this->in = $GLOBALS['artisand'];
        $this->out = fopen('php://fd/0', 'wb');
        $this->owner = getmypid();
        stream_set_write_buffer($this->out, 0);

        // Programs that a job starts must not read what is meant for us.
        if (defined('STDIN')) {
            fclose(STDIN);
            $GLOBALS['artisand_stdin'] = fopen('/dev/null', 'rb');
        }
    }

    /** Waits for a line; null if there will be none, false if a signal came. */
    public function receive()
    {
        while (true) {
            $line = $this->buffered();
            if ($line !== null) {
                return json_decode($line, true);
            }
            $ready = [$this->in];
            $none = null;
            if (@stream_select($ready, $none, $none, 3600) === false) {
                return false;
            }
            if ($ready !== []) {
                $line = fgets($this->in);
                if ($line === false) {
                    $this->isOpen = false;

                    return null;
                }

                return json_decode($line, true);
            }
        }
    }

    /** A line that was read together with another: select would not see it. */
    private function buffered()
    {
        if (stream_get_meta_data($this->in)['unread_bytes'] === 0) {
            return null;
        }
        $line = fgets($this->in);

        return $line === false ? null : $line;
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
        if (! $this->isOpen || getmypid() !== $this->owner) {
            return false;
        }
        $flags = JSON_INVALID_UTF8_SUBSTITUTE | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE;
        $line = json_encode(['is' => $is] + $more, $flags)."\n";
        $sent = 0;
        while ($sent < strlen($line)) {
            $written = @fwrite($this->out, $sent === 0 ? $line : substr($line, $sent));
            if (! $written) {
                return $this->isOpen = false;
            }
            $sent += $written;
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
    public $app;

    public $worker;

    public $options;

    private $channel;

    private $settings;

    /** The job that was given to the worker last and has not come round. */
    private $isRunning = false;

    private $wasReady = 0.0;

    public function __construct(Channel $channel)
    {
        $this->channel = $channel;
    }

    public function run()
    {
        $settings = $this->channel->receive();
        if (! is_array($settings)) {
            return 0;
        }
        $this->settings = $settings;
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
        $this->worker->setCache($this->app->make('cache')->driver());
        $this->options = $this->options();

        return (int) $this->worker->daemon($connection, $this->setting('queue', 'default'), $this->options);
    }

    private function setting($name, $default = null)
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

    private function listen()
    {
        $events = $this->app->make('events');
        $events->listen(\Illuminate\Queue\Events\JobExceptionOccurred::class, function ($event) {
            if ($event->job instanceof Job) {
                $this->channel->send('exception', described($event->exception));
            }
        });
        if (class_exists(\Illuminate\Queue\Events\JobTimedOut::class)) {
            $events->listen(\Illuminate\Queue\Events\JobTimedOut::class, function ($event) {
                if ($event->job instanceof Job) {
                    $this->channel->send('timeout');
                }
            });
        }
    }

    /** What `pop()` gives to Laravel's worker. */
    public function next(Manager $manager)
    {
        if ($this->isRunning && $this->setting('rest', 0) > 0) {
            $this->channel->send('done');
            $this->worker->sleep($this->setting('rest'));
        }
        $this->isRunning = false;
        $this->ready();
        while (true) {
            $order = $this->channel->receive();
            if ($order === false) {
                // A signal, which Laravel has heard of.
                return $this->worker->shouldQuit ? $this->quit() : null;
            }
            if ($order === null || ! isset($order['do']) || $order['do'] !== 'run') {
                return $this->quit();
            }
            $body = $this->channel->bytes($order['body']);
            $reserved = $this->channel->bytes($order['reserved']);
            if (strlen($reserved) !== $order['reserved']) {
                return $this->quit();
            }
            if ($this->mayNotRun()) {
                $this->channel->send('declined');

                return null;
            }
            $this->isRunning = true;

            return $manager->job($body, $reserved, $order['queue']);
        }
    }

    private function ready()
    {
        $more = ['memory' => memory_get_usage(true)];
        if ($this->wasReady === 0.0) {
            $more += ['laravel' => $this->app->version(), 'php' => PHP_VERSION, 'pcntl' => extension_loaded('pcntl')];
        }
        $this->wasReady = microtime(true);
        $this->channel->send('ready', $more);
    }

    /** Asks Laravel again what it asked before it waited, if that is long ago. */
    private function mayNotRun()
    {
        if (microtime(true) - $this->wasReady < 1) {
            return false;
        }
        [$connection, $queue, $options] = [$this->setting('connection'), $this->setting('queue'), $this->options];
        $asks = function () use ($connection, $queue, $options) {
            return $this->daemonShouldRun($options, $connection, $queue);
        };

        return ! $asks->call($this->worker);
    }

    private function quit()
    {
        $this->worker->shouldQuit = true;
        $this->options->sleep = 0;
    }
}

function described($exception)
{
    return ['class' => get_class($exception), 'message' => Channel::text($exception->getMessage())];
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
            return $this->pool;
        }

        public function job($body, $reserved, $queue)
        {
            $connection = $this->pool->getConnectionName();

            return (new Job($this->app, $this->redis, $body, $reserved, $connection, $queue))->reportTo($this->channel);
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
        private $channel;

        private $cause;

        public function reportTo(Channel $channel)
        {
            $this->channel = $channel;

            return $this;
        }

        public function fail($e = null)
        {
            $this->cause = $e ?: new \Illuminate\Queue\ManuallyFailedException;

            return parent::fail($this->cause);
        }

        public function delete()
        {
            if ($this->deleted) {
                return;
            }
            $said = $this->failed ? $this->saysFailed() : $this->channel->send('deleted');
            if ($said || ! $this->channel->isOurs()) {
                $this->deleted = true;

                return;
            }
            // artisand is gone: the end of the job is ours.
            parent::delete();
        }

        public function release($delay = 0)
        {
            if ($this->channel->send('released', ['delay' => $this->secondsUntil($delay)]) || ! $this->channel->isOurs()) {
                $this->released = true;

                return;
            }
            parent::release($delay);
        }

        private function saysFailed()
        {
            $failer = $this->container->make('queue.failer');
            $known = [
                'Illuminate\Queue\Failed\DatabaseUuidFailedJobProvider', 'Illuminate\Queue\Failed\DatabaseFailedJobProvider',
                'Illuminate\Queue\Failed\FileFailedJobProvider', 'Illuminate\Queue\Failed\NullFailedJobProvider',
            ];
            $exception = $this->cause ?: new \Illuminate\Queue\ManuallyFailedException;
            // A store of another kind is one that only PHP can write.
            $isLogged = ! in_array(get_class($failer), $known, true) && $this->isLogged($failer, $exception);

            $said = $this->channel->send('failed', described($exception) + [
                'exception' => Channel::text((string) $exception), 'logged' => $isLogged,
            ]);
            if (! $said && $this->channel->isOurs() && ! $isLogged) {
                $this->isLogged($failer, $exception);
            }

            return $said;
        }

        private function isLogged($failer, $exception)
        {
            try {
                $failer->log($this->connectionName, $this->queue, $this->getRawBody(), $exception);

                return true;
            } catch (\Throwable $problem) {
                $this->container->make(\Illuminate\Contracts\Debug\ExceptionHandler::class)->report($problem);

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
        $message = $problem->getMessage().' ('.$problem->getFile().':'.$problem->getLine().')';
        $channel->send('unbootable', ['message' => get_class($problem).': '.$message]);
        $status = 1;
    }
    exit($status);
}

main();
