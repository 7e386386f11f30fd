<?php

namespace App\Notifications;

use App\Models\Post;
use App\Seen;
use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Notifications\Messages\MailMessage;
use Illuminate\Notifications\Notification;

class InvoicePaid extends Notification implements ShouldQueue
{
    use Queueable;

    public $tries = 2;

    private string $note = 'private';

    public function __construct(public int $invoice, public float $amount, public ?Post $about = null)
    {
        $this->note = 'private, changed';
    }

    public function via($notifiable): array
    {
        return ['mail'];
    }

    public function toMail($notifiable): MailMessage
    {
        Seen::record(['class' => self::class, 'invoice' => $this->invoice, 'amount' => $this->amount]);

        return (new MailMessage)->subject('Paid')->line('Invoice '.$this->invoice);
    }
}
