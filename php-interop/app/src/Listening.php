<?php

namespace App;

use Illuminate\Queue\Events\JobExceptionOccurred;
use Illuminate\Queue\Events\JobReleasedAfterException;
use Illuminate\Support\Carbon;
use Illuminate\Support\Facades\Redis;
use RuntimeException;

/**
 * With `INTEROP_LISTENERS` set: listeners of the queue that note what they hear in the Redis list `interop:heard`
 * (no prefix), and ask of its job what changes nothing once the job has ended. The listener of a job called
 * `listener-throws` throws before the job, that of `listener-hangs` does not return.
 */
final class Listening
{
    public const KEY = 'interop:heard';

    public static function before($event): void
    {
        self::note('before', $event);
        $id = unserialize($event->job->payload()['data']['command'])->id ?? null;
        if ($id === 'listener-throws') {
            throw new RuntimeException('thrown before a job');
        }
        while ($id === 'listener-hangs') {
            usleep(10_000);
        }
    }

    public static function after($event): void
    {
        $event->job->release(5);
        $event->job->delete();
        $event->job->fail(new RuntimeException('after all'));
        self::note('after', $event);
    }

    public function subscribe($events): void
    {
        foreach ([JobExceptionOccurred::class, JobReleasedAfterException::class] as $name) {
            $events->listen($name, function ($event) use ($name) {
                self::note(class_basename($name), $event);
            });
        }
    }

    private static function note(string $what, $event): void
    {
        $job = $event->job;
        $payload = $job->payload();
        $exception = $event->exception ?? null;
        Redis::connection('interop')->rpush(self::KEY, json_encode([
            'what' => $what,
            'uuid' => $job->uuid(),
            'id' => $job->getJobId() === $payload['id'],
            'class' => $job->resolveName(),
            'command' => $payload['data']['commandName'],
            'connection' => [$event->connectionName, $job->getConnectionName()],
            'queue' => $job->getQueue(),
            'attempts' => $job->attempts(),
            'tries' => $job->maxTries(),
            'state' => [$job->isDeleted(), $job->isReleased(), $job->hasFailed()],
            'exception' => $exception === null ? null : get_class($exception).': '.$exception->getMessage(),
            'at' => (float) Carbon::now()->format('U.u'),
            'pid' => getmypid(),
        ], JSON_THROW_ON_ERROR));
    }
}
