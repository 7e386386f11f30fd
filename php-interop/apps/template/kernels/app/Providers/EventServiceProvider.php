<?php

namespace App\Providers;

use App\Events\OrderShipped;
use App\Listeners\LogShipment;
use App\Listeners\SendShipmentNotification;
use Illuminate\Foundation\Support\Providers\EventServiceProvider as ServiceProvider;

class EventServiceProvider extends ServiceProvider
{
    protected $listen = [
        OrderShipped::class => [
            SendShipmentNotification::class,
            LogShipment::class,
        ],
    ];
}
