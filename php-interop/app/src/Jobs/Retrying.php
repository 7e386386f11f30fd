<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Limits as class defaults: since Laravel 9.4 the bytes do not contain them. */
class Retrying implements ShouldQueue
{
    use Queued;

    public $tries = 3;

    public $backoff = [1, 5, 10];

    public $order = 17;
}
