<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Arrays a hundred levels deep. */
class DeepNesting implements ShouldQueue
{
    use Queued;

    public array $deep;

    public function __construct(int $levels = 100)
    {
        $this->deep = ['bottom' => 1.0];
        for ($level = 1; $level < $levels; $level++) {
            $this->deep = $level % 2 ? [$this->deep] : ['in' => $this->deep, 'level' => $level];
        }
    }
}
