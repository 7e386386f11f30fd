<?php

namespace App;

use Illuminate\Support\Facades\Redis;

/**
 * When PHP runs a job of the catalogue, it appends a JSON line to the Redis list
 * `interop:seen` (no prefix): the class and the document of the job that arrived.
 */
final class Seen
{
    public const KEY = 'interop:seen';

    public static function record(mixed $what): void
    {
        $line = is_object($what) ? ['class' => $what::class] + Document::of($what) : $what;

        Redis::connection('interop')->rpush(self::KEY, Document::json($line));
    }
}
