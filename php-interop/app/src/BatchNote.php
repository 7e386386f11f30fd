<?php

namespace App;

use Illuminate\Bus\Batch;
use Illuminate\Support\Facades\Redis;
use Throwable;

/** The lines that a batch's callbacks write: the Redis list `interop:batch` (no prefix) of JSON lines. */
final class BatchNote
{
    public static function write(string $callback, Batch $batch, ?Throwable $exception): void
    {
        Redis::connection('interop')->rpush('interop:batch', Document::json([
            'callback' => $callback,
            'id' => $batch->id,
            'total' => $batch->totalJobs,
            'pending' => $batch->pendingJobs,
            'failed' => $batch->failedJobs,
            'cancelled' => $batch->cancelled(),
            'finished' => $batch->finished(),
            'exception' => $exception === null ? null : $exception::class,
        ]));
    }
}
