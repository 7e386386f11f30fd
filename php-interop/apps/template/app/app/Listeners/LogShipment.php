<?php

namespace App\Listeners;

use App\Events\OrderShipped;

/** Not queued, extends and implements nothing. */
class LogShipment
{
    public function handle(OrderShipped $event)
    {
    }
}
