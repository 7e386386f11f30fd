<?php

namespace App\Wrapped;

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Notifications\Notification;

class Invoice extends Notification implements ShouldQueue
{
    use Queueable;

    private string $note = 'private';

    public function __construct(public int $invoice)
    {
        $this->note = 'private, changed';
    }

    public function via($notifiable): array
    {
        return ['mail', 'App\Channels\Sms'];
    }
}
