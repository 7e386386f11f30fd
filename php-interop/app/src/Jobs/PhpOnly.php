<?php

namespace App\Jobs;

/** Middleware that the app defines. */
class PhpOnly
{
    public function handle($job, $next)
    {
        return $next($job);
    }
}
