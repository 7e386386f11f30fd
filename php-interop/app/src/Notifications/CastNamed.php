<?php

namespace App\Notifications;

use Illuminate\Broadcasting\PrivateChannel;

/** Says its channel, type and (since Laravel 9) name itself. */
class CastNamed extends CastAlert
{
    public $level = 'high';

    public function broadcastOn()
    {
        return [new PrivateChannel('alerts.'.$this->level)];
    }

    public function broadcastType()
    {
        return 'alert.named';
    }

    public function broadcastAs()
    {
        return 'alerted';
    }
}
