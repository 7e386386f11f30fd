<?php

namespace App\Jobs;

use DateInterval;
use DateTimeImmutable;
use DateTimeZone;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Time spans. */
class Intervals implements ShouldQueue
{
    use Queued;

    public array $intervals;

    public function __construct()
    {
        $from = new DateTimeImmutable('2026-01-01 00:00:00', new DateTimeZone('UTC'));
        $to = new DateTimeImmutable('2026-03-04 05:06:07.25', new DateTimeZone('UTC'));
        $negative = new DateInterval('PT90S');
        $negative->invert = 1;
        $this->intervals = [
            'plain' => new DateInterval('P1Y2M3DT4H5M6S'),
            'difference' => $from->diff($to),
            'backwards' => $to->diff($from),
            'negative' => $negative,
            'text' => DateInterval::createFromDateString('3 days'),
        ];
    }
}
