<?php

namespace App\Events\Cast;

use App\Models\User;
use Illuminate\Broadcasting\PrivateChannel;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;
use Illuminate\Queue\SerializesModels;

/** The row of the model is published. */
class WithModel implements ShouldBroadcast
{
    use SerializesModels;

    public function __construct(public User $user) {}

    public function broadcastOn()
    {
        return new PrivateChannel('users.'.$this->user->id);
    }
}
