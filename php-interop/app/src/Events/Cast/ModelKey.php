<?php

namespace App\Events\Cast;

use App\Models\User;
use Illuminate\Broadcasting\InteractsWithSockets;
use Illuminate\Broadcasting\PrivateChannel;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;
use Illuminate\Queue\SerializesModels;

/** Of the model it needs the key only. */
class ModelKey implements ShouldBroadcast
{
    use InteractsWithSockets, SerializesModels;

    public function __construct(public User $user) {}

    public function broadcastOn()
    {
        return [new PrivateChannel('users.'.$this->user->id)];
    }

    public function broadcastWith()
    {
        return ['id' => $this->user->id];
    }
}
