<?php

namespace App\Events\Cast;

use Illuminate\Broadcasting\PrivateChannel;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;

/** Its channels are more than one `return`. */
class Computed implements ShouldBroadcast
{
    public $ids = [1, 2];

    public function broadcastOn()
    {
        return array_map(fn ($id) => new PrivateChannel('computed.'.$id), $this->ids);
    }
}
