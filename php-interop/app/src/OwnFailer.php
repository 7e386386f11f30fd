<?php

namespace App;

use Illuminate\Queue\Failed\FailedJobProviderInterface;
use Illuminate\Support\Facades\Redis;

/** With `INTEROP_FAILER=own`, failed jobs go to the Redis list `interop:own-failed` (no prefix). */
final class OwnFailer implements FailedJobProviderInterface
{
    public const KEY = 'interop:own-failed';

    public function log($connection, $queue, $payload, $exception)
    {
        Redis::connection('interop')->rpush(self::KEY, json_encode([
            'connection' => $connection, 'queue' => $queue, 'payload' => $payload, 'exception' => (string) $exception,
        ], JSON_THROW_ON_ERROR));
    }

    public function all()
    {
        return [];
    }

    public function ids($queue = null)
    {
        return [];
    }

    public function find($id) {}

    public function forget($id) {}

    public function flush($hours = null) {}
}
