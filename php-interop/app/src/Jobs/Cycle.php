<?php

namespace App\Jobs;

use App\Values\Node;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Objects that contain themselves. */
class Cycle implements ShouldQueue
{
    use Queued;

    public Node $ring;

    public Node $same;

    public function __construct()
    {
        $first = new Node('first');
        $second = new Node('second');
        $first->next = $second;
        $second->next = $first;
        $second->extra = ['self' => $second, 'first' => [$first]];
        $this->ring = $first;
        $this->same = $second;
    }
}
