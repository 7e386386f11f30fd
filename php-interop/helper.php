<?php

/**
 * A helper: a process of the app that runs no jobs, and does what `artisand` asks of it.
 *
 * It is sent in front of pool.php, boots as a member of the pool does, and speaks over the same socket. From artisand:
 *
 *   {"do": "raise", "attempts": [..]}   raises Laravel's events for attempts that have ended in artisand's handlers
 *   {"do": "hooks", "payload": "..", "connection": "redis", "queue": "default"}
 *                                       runs the app's payload hooks (`Queue::createPayloadUsing`) for this payload
 *   {"do": "waits"}                     lets Horizon look for queues whose jobs wait too long
 *   {"do": "stop"}
 *
 * From the helper, besides `booted` and `unbootable`:
 *
 *   progress   requests of many parts: `done` of them are over; sent each second
 *   answer     the end of a request: `answer`; `last` if the process ends now
 *
 * PHP 7.3 and later, Laravel 8 to 13.
 */

namespace Artisand\Pool;

class Helper extends Member
{
    /** Fields of a payload that Laravel adds after the app's hooks have run, and the one that artisand adds itself. */
    const LATER = ['delay', 'id', 'attempts', 'type', 'tags', 'silenced', 'pushedAt', 'illuminate:log:context'];

    private $events;

    /** Since when artisand has heard nothing of the running request. */
    private $heard = 0.0;

    /** What listeners threw, what they asked of ended jobs, and an example of each. */
    private $threw = [0, null];

    private $ignored = [0, null];

    public function run()
    {
        entitle('helper', $this->setting('serves'));
        $this->boot();
        define_ended_job();
        $this->events = $this->app->make('events');
        $this->worker = $this->app->make('queue.worker');
        $began = microtime(true);
        $this->channel->send('booted', [
            'laravel' => $this->app->version(), 'php' => PHP_VERSION, 'signals' => false, 'clock' => hrtime(true),
        ]);
        $isLast = false;
        while (! $isLast && ($order = $this->channel->receive()) !== null) {
            if ($order === false) {
                continue;
            }
            if ($order['do'] === 'stop') {
                break;
            }
            $this->heard = microtime(true);
            $answer = $this->answer($order);
            $limit = $this->setting('max_time');
            $isLast = memory_get_usage(true) >= $this->setting('options')['memory'] * 1024 * 1024
                || ($limit !== null && microtime(true) - $began >= $limit);
            $this->channel->send('answer', ['answer' => $answer, 'last' => $isLast]);
        }
        // Packages write what they have gathered when the worker stops.
        $this->dispatch(new \Illuminate\Queue\Events\WorkerStopping(0));

        return $this->terminate(0);
    }

    /** No loop of Laravel's runs here, and its event says nothing about a job. */
    protected function attend()
    {
    }

    private function answer(array $order)
    {
        switch ($order['do']) {
            case 'raise':
                return $this->raise($order['attempts']);
            case 'waits':
                return $this->lookForWaits();
            default:
                return $this->hooked($order);
        }
    }

    /** Horizon takes its lock for this, and raises its event for each queue whose jobs wait too long. */
    private function lookForWaits()
    {
        try {
            // Horizon before 5.10 wants the event, and does not read it.
            $event = new \ReflectionClass('Laravel\Horizon\Events\SupervisorLooped');
            $monitor = $this->app->make('Laravel\Horizon\Listeners\MonitorWaitTimes');
            $monitor->handle($event->newInstanceWithoutConstructor());
        } catch (\Throwable $problem) {
            report($this->app, $problem);

            return ['why' => get_class($problem).': '.Channel::text($problem->getMessage())];
        }

        return ['why' => null];
    }

    private function raise(array $attempts)
    {
        $this->threw = $this->ignored = [0, null];
        $done = 0;
        foreach ($attempts as $attempt) {
            $this->raiseAll($attempt);
            $done++;
            if (microtime(true) - $this->heard >= 1) {
                $this->heard = microtime(true);
                $this->channel->send('progress', ['done' => $done]);
            }
        }
        // As in the loop of Laravel's worker: packages write what they have gathered.
        $this->dispatch(new \Illuminate\Queue\Events\Looping($this->setting('connection'), $this->setting('queue')));

        return ['threw' => $this->threw[0], 'thrown' => $this->threw[1],
            'ignored' => $this->ignored[0], 'asked' => $this->ignored[1]];
    }

    /** Raises the events of one attempt, each at its own time by the app's clock. */
    private function raiseAll(array $attempt)
    {
        $this->asks(function () {
            if (isset($this->resetScope)) {
                ($this->resetScope)();
            }
        });
        $job = new EndedJob($this->app, $attempt, function ($asked, $name) {
            $this->ignored = [$this->ignored[0] + 1, $this->ignored[1] ?: "{$asked} of {$name}"];
        });
        $error = $attempt['error'] === null ? null : exception(...$attempt['error']);
        $hasClock = \Illuminate\Support\Carbon::hasTestNow();
        $names = array_column($attempt['events'], 0);
        foreach ($attempt['events'] as [$name, $at]) {
            $class = "Illuminate\\Queue\\Events\\{$name}";
            if (! class_exists($class)) {
                continue;
            }
            $isOver = ! in_array($name, ['JobPopped', 'JobProcessing'], true)
                && ($name !== 'JobExceptionOccurred' || ! in_array('JobReleasedAfterException', $names, true));
            $job->becomes($isOver ? $attempt['state'] : '');
            if (! $hasClock) {
                set_clock($at);
            }
            $this->dispatch($this->event($class, $job, $attempt, $error));
        }
        if (! $hasClock) {
            set_clock(null);
        }
    }

    private function event($class, $job, array $attempt, $error)
    {
        $more = [];
        switch (class_basename($class)) {
            case 'JobExceptionOccurred':
                $more = [$error];
                break;
            case 'JobReleasedAfterException':
                $more = [$attempt['delay'], $error];
                break;
            case 'JobTimedOut':
                $more = [$attempt['timeout']];
                break;
            case 'JobAttempted':
                // Before Laravel 13 the event says only whether there was an exception.
                $asked = (new \ReflectionMethod($class, '__construct'))->getParameters()[2] ?? null;
                $isFlag = $asked !== null && $asked->getName() !== 'exception';
                $more = [$isFlag ? $error !== null : $error];
        }

        return new $class($attempt['connection'], $job, ...$more);
    }

    /** Laravel's dispatcher leaves out the listeners behind one that throws; the events that follow are raised. */
    private function dispatch($event)
    {
        try {
            $this->events->dispatch($event);
        } catch (\Throwable $problem) {
            $this->threw = [$this->threw[0] + 1, $this->threw[1] ?: get_class($problem).': '.Channel::text($problem->getMessage())];
            report($this->app, $problem);
        }
    }

    /** The fields that the app's payload hooks add to a payload, as JSON texts; or the reason why there are none. */
    private function hooked(array $order)
    {
        try {
            $payload = json_decode($order['payload'], true);
            // As Laravel gives it to hooks: with the object, and without what is added after them.
            if ($payload['job'] === 'Illuminate\Queue\CallQueuedHandler@call') {
                $command = $payload['data']['command'];
                if (substr($command, 0, 2) !== 'O:') {
                    $command = $this->app->make(\Illuminate\Contracts\Encryption\Encrypter::class)->decrypt($command);
                }
                $command = unserialize($command);
                $payload['data'] = ['commandName' => $command, 'command' => $command] + $payload['data'];
            }
            $given = array_diff_key($payload, array_flip(self::LATER));
            $context = \Illuminate\Log\Context\Repository::class;
            if (class_exists($context)) {
                $this->app->make($context)->hydrate($payload['illuminate:log:context'] ?? null);
            }
            $queue = $this->app->make('queue')->connection($order['connection']);
            $hooked = (function () use ($order, $given) {
                return $this->withCreatePayloadHooks($this->getQueue($order['queue']), $given);
            })->call($queue);
        } catch (\Throwable $problem) {
            report($this->app, $problem);

            return ['why' => get_class($problem).': '.Channel::text($problem->getMessage())];
        }
        $fields = [];
        foreach (array_diff_key($hooked, ['illuminate:log:context' => true]) as $name => $value) {
            if (! array_key_exists($name, $given)) {
                $fields[] = [(string) $name, json_encode($value, JSON_UNESCAPED_UNICODE)];
            } elseif ($value === $given[$name]) {
                continue;
            }
            if (array_key_exists($name, $payload) || in_array($name, self::LATER, true)) {
                return ['why' => "a hook sets `{$name}`"];
            }
        }

        return ['fields' => $fields];
    }
}

/** Laravel's own exceptions keep their class; an error of a handler in Rust has none in PHP. */
function exception($class, $message)
{
    $own = ['Illuminate\Queue\MaxAttemptsExceededException', 'Illuminate\Queue\TimeoutExceededException',
        'Illuminate\Queue\ManuallyFailedException'];

    return in_array($class, $own, true) && class_exists($class) ? new $class($message) : new \RuntimeException($message);
}

/** Lets the app's clock show this moment, and go on from there; null for the real time. */
function set_clock($at)
{
    $micros = $at === null ? 0 : max(0, (int) ((microtime(true) - $at) * 1000000));
    \Illuminate\Support\Carbon::setTestNow($at === null ? null : function ($now) use ($micros) {
        return $now->modify("-{$micros} microseconds");
    });
}

/** Defines a class that extends Laravel's, which exists only once the app is booted. */
function define_ended_job()
{
    /** A job whose attempt has ended in a handler. It is none of Redis, so that Horizon's listeners write nothing. */
    class EndedJob extends \Illuminate\Queue\Jobs\Job implements \Illuminate\Contracts\Queue\Job
    {
        private $attempt;

        private $decoded;

        private $ignores;

        public function __construct($container, array $attempt, \Closure $ignores)
        {
            $this->container = $container;
            $this->attempt = $attempt;
            $this->ignores = $ignores;
            $this->connectionName = $attempt['connection'];
            $this->queue = $attempt['queue'];
            $this->decoded = json_decode($attempt['body'], true);
        }

        /** Sets what the listeners of the next event see: `deleted`, `released`, `failed`, or nothing yet. */
        public function becomes($state)
        {
            $this->failed = $state === 'failed';
            $this->deleted = $this->failed || $state === 'deleted';
            $this->released = $state === 'released';
        }

        public function getJobId()
        {
            return $this->decoded['id'] ?? null;
        }

        public function getRawBody()
        {
            return $this->attempt['body'];
        }

        public function payload()
        {
            return $this->decoded;
        }

        public function attempts()
        {
            return $this->attempt['attempts'];
        }

        public function fire()
        {
            $this->ignore('fire');
        }

        public function release($delay = 0)
        {
            $this->ignore('release');
        }

        public function delete()
        {
            $this->ignore('delete');
        }

        public function fail($e = null)
        {
            $this->ignore('fail');
        }

        private function ignore($asked)
        {
            ($this->ignores)($asked, $this->resolveName());
        }
    }
}
