<?php

namespace App\Events;

use App\Models\User;
use Illuminate\Broadcasting\InteractsWithSockets;
use Illuminate\Foundation\Events\Dispatchable;
use Illuminate\Queue\SerializesModels;
use Illuminate\Support\Carbon;

class OrderShipped
{
    use Dispatchable, InteractsWithSockets, SerializesModels;

    public $carrier = 'post';

    public function __construct(public User $user, public Carbon $at, protected array $items) {}
}
