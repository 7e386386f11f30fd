<?php

namespace App\Events\Cast;

use Illuminate\Broadcasting\Channel;
use Illuminate\Contracts\Broadcasting\ShouldBeUnique;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;

// Laravel 8 has no such interface; any will do there.
if (! interface_exists(ShouldBeUnique::class)) {
    class_alias(\Illuminate\Contracts\Queue\ShouldBeUnique::class, ShouldBeUnique::class);
}

/** Unique since Laravel 9.22. */
class Single implements ShouldBroadcast, ShouldBeUnique
{
    public $uniqueFor = 300;

    public function __construct(public int $number) {}

    public function uniqueId()
    {
        return 'number-'.$this->number;
    }

    public function broadcastOn()
    {
        return new Channel('single');
    }
}
