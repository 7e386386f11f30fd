<?php

namespace App\Mail;

use App\Models\User;
use App\Seen;
use Illuminate\Bus\Queueable;
use Illuminate\Mail\Mailable;
use Illuminate\Queue\SerializesModels;

class OrderConfirmation extends Mailable
{
    use Queueable, SerializesModels;

    public $tries = 2;

    private array $prices;

    public function __construct(public User $user, public int $order)
    {
        $this->prices = ['net' => 10.0, 'gross' => 12.3];
    }

    public function build()
    {
        Seen::record(['class' => self::class, 'order' => $this->order, 'to' => $this->to]);

        return $this->subject('Order '.$this->order)->html('<p>Thanks</p>');
    }
}
