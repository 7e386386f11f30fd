<?php

namespace App;

use Illuminate\Support\Facades\Redis;

/**
 * With `INTEROP_EVENTS` set, each event of the queue that a process dispatches is
 * appended to the Redis list `interop:events` (no prefix), as a JSON line: its
 * name, and of what it carries what is there.
 */
final class WorkerEvents
{
    public const KEY = 'interop:events';

    public function record(string $name, array $payload): void
    {
        [$event] = $payload;
        $job = $event->job ?? null;
        $exception = $event->exception ?? null;

        Redis::connection('interop')->rpush(self::KEY, json_encode([
            'event' => class_basename($name),
            'uuid' => is_object($job) ? $job->uuid() : null,
            'attempts' => is_object($job) ? $job->attempts() : null,
            'exception' => $exception === null ? null : $exception::class,
            'message' => $exception === null ? null : $exception->getMessage(),
            'backoff' => $event->backoff ?? null,
            'status' => $event->status ?? null,
            'processed' => $event->jobsProcessed ?? null,
        ], JSON_THROW_ON_ERROR));
    }
}
