<?php

namespace App\Jobs;

/** Middleware of the app's own. */
class PhpOnly
{
    public function handle($job, $next)
    {
        return $next($job);
    }
}
