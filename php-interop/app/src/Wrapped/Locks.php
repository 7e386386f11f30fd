<?php

namespace App\Wrapped;

use App\Seen;
use Illuminate\Support\Facades\Redis;

final class Locks
{
    /** The locks of jobs that are held, with all their prefixes. The cache keeps locks on this connection. */
    public static function record(): void
    {
        $keys = Redis::connection('default')->client()->rawCommand('KEYS', '*laravel-queue-overlap*');
        sort($keys);
        Seen::record(['locks' => $keys]);
    }
}
