<?php

namespace App\Events;

use Illuminate\Foundation\Events\Dispatchable;
use Illuminate\Queue\SerializesModels;

class OrderShipped
{
    use Dispatchable;
    use SerializesModels;

    public $orderId = 0;

    public $express = false;

    public function __construct($orderId)
    {
        $this->orderId = $orderId;
    }
}
