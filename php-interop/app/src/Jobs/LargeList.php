<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** A long list of integers (INTEROP_LARGE_LIST for another length). */
class LargeList implements ShouldQueue
{
    use Queued;

    public array $numbers;

    public function __construct()
    {
        $this->numbers = range(1, (int) (getenv('INTEROP_LARGE_LIST') ?: 5000));
    }
}
