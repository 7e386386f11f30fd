<?php

namespace App;

use Illuminate\Contracts\Queue\Job;
use Illuminate\Support\Facades\Redis;

/**
 * With `INTEROP_EVENTS` set, each event of the queue that a process dispatches is
 * appended to the Redis list `interop:events` (no prefix), as a JSON line: its
 * name, and those of its properties that it has.
 */
final class WorkerEvents
{
    public const KEY = 'interop:events';

    /** Events of batches, `name id`. */
    public const BATCHES = 'interop:batch-events';

    public function recordBatch(string $name, array $payload): void
    {
        [$event] = $payload;
        Redis::connection('interop')->rpush(self::BATCHES, class_basename($name).' '.$event->batch->id);
    }

    public function record(string $name, array $payload): void
    {
        [$event] = $payload;
        // Events of pushes contain the pushed job instead.
        $job = ($event->job ?? null) instanceof Job ? $event->job : null;
        $exception = $event->exception ?? null;

        Redis::connection('interop')->rpush(self::KEY, json_encode([
            'event' => class_basename($name),
            'uuid' => $job?->uuid(),
            'name' => $job?->resolveName(),
            'attempts' => $job?->attempts(),
            'exception' => $exception === null ? null : $exception::class,
            'message' => $exception === null ? null : $exception->getMessage(),
            'backoff' => $event->backoff ?? null,
            'status' => $event->status ?? null,
            'signal' => $event->signal ?? null,
            'processed' => $event->jobsProcessed ?? null,
        ], JSON_THROW_ON_ERROR));
    }
}
