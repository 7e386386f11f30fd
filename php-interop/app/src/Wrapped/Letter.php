<?php

namespace App\Wrapped;

use Illuminate\Bus\Queueable;
use Illuminate\Mail\Mailable;
use Illuminate\Queue\SerializesModels;

class Letter extends Mailable
{
    use Queueable, SerializesModels;

    private array $prices = [];

    public function __construct(public int $order) {}

    /** With everything that can be set before it is queued. */
    public static function full(int $order): self
    {
        $letter = new self($order);
        $letter->prices = ['net' => 10.0];
        $letter->replyTo('r@example.com', 'R')->from('f@example.com', 'F')->subject('Ihre Bestellung')
            ->view('letter')->text('letter-text')->with('k', 'v')->with(['n' => [1, 2.5]])
            ->attach('/srv/f.pdf', ['as' => 'f.pdf', 'mime' => 'application/pdf'])
            ->attachData('RAW', 'r.txt', ['mime' => 'text/plain'])
            ->attachFromStorageDisk('s3', 'p/q.txt', 'q.txt');
        $letter->theme = 'dark';
        if (method_exists($letter, 'tag')) {
            $letter->tag('t1')->metadata('m', '1');
        }

        return $letter;
    }

    public function build()
    {
        return $this->html('<p>Thanks</p>');
    }
}
