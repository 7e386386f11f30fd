<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** An array that contains itself by reference. */
class CycleOfArray implements ShouldQueue
{
    use Queued;

    public array $ring;

    public function __construct()
    {
        // One level further down: PHP writes null for an array directly inside itself.
        $ring = ['n' => 2];
        $ring['self'] = &$ring;
        $this->ring = ['n' => 1, 'inner' => &$ring];
    }
}
