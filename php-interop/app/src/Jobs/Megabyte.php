<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** A text of a million bytes (INTEROP_MEGABYTE for another size). */
class Megabyte implements ShouldQueue
{
    use Queued;

    public string $text;

    public function __construct()
    {
        $size = (int) (getenv('INTEROP_MEGABYTE') ?: 1_000_000);
        $this->text = substr(str_repeat("0123456789 abcdefghij \"quoted\" \\\n", intdiv($size, 32) + 1), 0, $size);
    }
}
