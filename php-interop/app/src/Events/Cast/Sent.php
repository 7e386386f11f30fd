<?php

namespace App\Events\Cast;

use Illuminate\Broadcasting\InteractsWithBroadcasting;
use Illuminate\Broadcasting\InteractsWithSockets;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;

/** On broadcast connections of its own. */
class Sent implements ShouldBroadcast
{
    use InteractsWithBroadcasting, InteractsWithSockets;

    public $id = 3;

    /** Since Laravel 11.38 what is under a connection's name is for that one. */
    public $second = ['only' => 'for the second'];

    public function __construct($connections)
    {
        $this->broadcastVia($connections);
    }

    public function broadcastOn()
    {
        return ['redis' => ['all'], 'second' => ['one', 'two']];
    }
}
