<?php

namespace App\Events\Cast;

use App\Values\Money;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;

/** With objects that are no more than their properties. */
class Paid implements ShouldBroadcast
{
    public function __construct(public Money $money, public array $all = []) {}

    public function broadcastOn()
    {
        return 'paid.'.$this->money->label;
    }
}
