<?php

namespace App\Listeners;

use App\Events\OrderShipped;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\InteractsWithQueue;

class SendShipmentNotification implements ShouldQueue
{
    use InteractsWithQueue;

    public $queue = 'listeners';

    public $delay = 15;

    public $afterCommit = true;

    public function handle(OrderShipped $event)
    {
    }

    public function viaConnection()
    {
        return 'redis';
    }
}
