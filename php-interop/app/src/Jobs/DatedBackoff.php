<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Support\Carbon;

/** Limits given as points in time. */
class DatedBackoff implements ShouldQueue
{
    use Queued;

    public $backoff;

    public $retryUntil;

    public $maxExceptions = 3;

    public $failOnTimeout = true;

    public function __construct()
    {
        $this->backoff = [Carbon::parse('2020-01-01 00:00:00'), 5];
        $this->retryUntil = Carbon::parse('2040-02-03 04:05:06.7', 'Europe/Warsaw');
    }
}
