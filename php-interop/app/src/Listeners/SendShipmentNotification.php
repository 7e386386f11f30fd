<?php

namespace App\Listeners;

use App\Events\OrderShipped;
use App\Routing;
use App\Seen;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\InteractsWithQueue;

class SendShipmentNotification implements ShouldQueue
{
    use InteractsWithQueue;

    public function handle(OrderShipped $event): void
    {
        Seen::record($event);
    }

    public function viaQueue(): ?string
    {
        return Routing::$queue;
    }
}
