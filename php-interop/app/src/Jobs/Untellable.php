<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Methods whose results are known only by running them. */
class Untellable implements ShouldQueue
{
    use Queued;

    public $number = 2;

    public static $shared = 3;

    public function displayName(): string
    {
        return strtoupper('only PHP knows');
    }

    public function uniqueId()
    {
        return $this->number ?: 'none';
    }

    public function uniqueFor()
    {
        return $this->number->value;
    }

    public function tries()
    {
        static $calls = 0;

        return 3;
    }

    public function backoff()
    {
        return [1, 2 + 3];
    }

    public function retryAfter()
    {
        return "a\tb".$this->number;
    }
}
