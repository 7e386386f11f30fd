<?php

namespace App;

use App\Events\ArticleRead;
use App\Events\OrderShipped;
use App\Listeners\CountReading;
use App\Listeners\SendShipmentNotification;
use Illuminate\Broadcasting\BroadcastManager;
use Illuminate\Cache\RateLimiting\Limit;
use Illuminate\Contracts\Bus\Dispatcher;
use Illuminate\Queue\Console\ClearCommand;
use Illuminate\Queue\Console\FlushFailedCommand;
use Illuminate\Queue\Queue;
use Illuminate\Queue\Worker;
use Illuminate\Support\Carbon;
use Illuminate\Support\Facades\RateLimiter;
use Illuminate\Support\Facades\Redis;
use Illuminate\Support\ServiceProvider;
use Illuminate\Support\Str;

class InteropServiceProvider extends ServiceProvider
{
    public function register(): void
    {
        if ($source = getenv('PULSE_SOURCE')) {
            RealPulse::register($this->app, $source);
        }
        // The first connection to the database creates the tables.
        $this->app->resolving('db', function ($db) {
            foreach (['sqlite', 'mysql', 'mariadb', 'pgsql'] as $driver) {
                $db->extend($driver, fn (array $config, string $name) => Database::connect(
                    $this->app['db.factory'],
                    $config,
                    $name
                ));
            }
        });
    }

    public function boot(): void
    {
        $this->app['events']->listen(OrderShipped::class, SendShipmentNotification::class);
        $this->app['events']->listen(ArticleRead::class, CountReading::class.'@count');

        $group = fn ($job) => $job->group ?? '';
        RateLimiter::for('interop', fn ($job) => Limit::perMinutes(10, 2)->by($group($job)));
        RateLimiter::for('pair', fn ($job) => [Limit::perMinutes(10, 5)->by($group($job)), Limit::perMinutes(10, 1)->by('all')]);
        RateLimiter::for('alike', fn ($job) => [Limit::perMinutes(10, 3)->by('x'), Limit::perMinutes(20, 1)->by('x')]);

        if (getenv('INTEROP_PAYLOAD_HOOK')) {
            Queue::createPayloadUsing([PayloadHook::class, 'add']);
        }
        if (Determinism::seeded()) {
            Str::createUuidsUsing(fn () => \Ramsey\Uuid\Uuid::fromString(Determinism::uuid()));
        }
        if (getenv('INTEROP_CODE')) {
            Worker::popUsing('default', fn ($pop) => $pop('default'));
            $this->app[Dispatcher::class]->pipeThrough([Traces::class]);
            foreach ([ClearCommand::class, FlushFailedCommand::class] as $command) {
                if (method_exists($command, 'prohibit')) {
                    $command::prohibit();
                }
            }
            class_alias(Masters::class, 'Laravel\Horizon\MasterSupervisor');
            Masters::determineNameUsing(fn () => 'shop');
            if (method_exists($this->app['queue'], 'forward')) {
                $this->app['queue']->forward('from', 'to');
            }
            if (method_exists($this->app['queue'], 'withoutInterruptionPolling')) {
                $this->app['queue']->withoutInterruptionPolling();
            }
            if (property_exists(Worker::class, 'memoryExceededExitCode')) {
                Worker::$memoryExceededExitCode = '355'; // Text, as from .env; the system makes 99 of it.
            }
        }
        if ($source = getenv('PULSE_SOURCE')) {
            RealPulse::migrate($source);
        }
        if (getenv('INTEROP_HORIZON')) {
            class_alias(LongWaits::class, 'Laravel\Horizon\Listeners\MonitorWaitTimes');
            class_alias(SupervisorLooped::class, 'Laravel\Horizon\Events\SupervisorLooped');
        }
        if (getenv('INTEROP_TRACES')) {
            Traces::leave($this->app['events']);
        }
        $this->app[BroadcastManager::class]->extend('seen', fn () => new SeenBroadcaster);
        if (getenv('INTEROP_FAILER') === 'own') {
            $this->app->extend('queue.failer', fn () => new OwnFailer);
        }
        if ($guard = getenv('INTEROP_LOOPING_WHILE')) {
            // False while the Redis key is there.
            $this->app['queue']->looping(function () use ($guard) {
                Redis::connection('interop')->incr('interop:looks');

                return ! Redis::connection('interop')->exists($guard);
            });
        }
        if (getenv('INTEROP_EVENTS')) {
            $this->app['events']->listen('Illuminate\Queue\Events\*', WorkerEvents::class.'@record');
            $this->app['events']->listen('Illuminate\Bus\Events\*', WorkerEvents::class.'@recordBatch');
        }
        if (getenv('INTEROP_LISTENERS')) {
            $this->app['queue']->before([Listening::class, 'before']);
            $this->app['queue']->after([Listening::class, 'after']);
            $this->app['events']->subscribe(Listening::class);
        }
        if (getenv('INTEROP_FAILING')) {
            // What a listener may do to a job that has failed, and shouldn't.
            $this->app['queue']->failing(function ($event) {
                $job = $event->job;
                $before = [$job->isDeleted(), $job->isReleased(), $job->hasFailed()];
                $job->release(5);
                $job->delete();
                $job->fail(new \RuntimeException('once more'));
                Redis::connection('interop')->rpush('interop:failing', json_encode([
                    'uuid' => $job->uuid(),
                    'id' => $job->getJobId() === ($job->payload()['id'] ?? null),
                    'class' => $job->resolveName(),
                    'command' => $job->payload()['data']['commandName'] ?? null,
                    'queue' => $job->getQueue(),
                    'connection' => [$event->connectionName, $job->getConnectionName()],
                    'attempts' => $job->attempts(),
                    'was' => $before,
                    'is' => [$job->isDeleted(), $job->isReleased(), $job->hasFailed()],
                    'exception' => get_class($event->exception),
                    'message' => $event->exception->getMessage(),
                ], JSON_THROW_ON_ERROR));
                throw new \RuntimeException('thrown by a listener');
            });
        }
        if ($now = getenv('INTEROP_NOW')) {
            Carbon::setTestNow(Carbon::createFromTimestamp((int) $now, 'UTC'));
        }
    }
}
