<?php

namespace App\Events\Cast;

use Illuminate\Contracts\Broadcasting\ShouldBroadcast;
use Illuminate\Support\Collection;

/** PHP makes its data of a collection. */
class Valued implements ShouldBroadcast
{
    public function __construct(public Collection $items) {}

    public function broadcastOn()
    {
        return 'valued';
    }
}
