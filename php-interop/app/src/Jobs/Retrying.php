<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Limits as class defaults: from Laravel 9.4 on not on the wire. */
class Retrying implements ShouldQueue
{
    use Queued;

    public $tries = 3;

    public $backoff = [1, 5, 10];

    public $order = 17;
}
