<?php

namespace App\Jobs;

use Carbon\CarbonImmutable;
use DateTime;
use DateTimeImmutable;
use DateTimeZone;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Support\Carbon;

/** Every kind of date object and zone. */
class Dates implements ShouldQueue
{
    use Queued;

    public array $dates;

    public DateTimeImmutable $due;

    public ?Carbon $seenAt = null;

    public function __construct()
    {
        $this->due = new DateTimeImmutable('2026-01-02 03:04:05.678901', new DateTimeZone('Europe/Warsaw'));
        $this->seenAt = Carbon::create(2026, 7, 1, 12, 0, 0, 'America/New_York');
        $this->dates = [
            'utc' => new DateTime('2026-01-02 03:04:05', new DateTimeZone('UTC')),
            'micro' => new DateTime('2026-01-02 03:04:05.000001', new DateTimeZone('UTC')),
            'offset' => new DateTimeImmutable('2026-01-02 03:04:05.5', new DateTimeZone('+05:30')),
            'offset behind' => new DateTimeImmutable('2026-01-02 03:04:05', new DateTimeZone('-03:30')),
            'abbreviation' => new DateTime('2026-07-02 03:04:05 EDT'),
            'abbreviation, winter' => new DateTime('2026-01-02 03:04:05 CET'),
            'summer' => new DateTime('2026-07-02 03:04:05', new DateTimeZone('Europe/Warsaw')),
            'southern' => new DateTime('2026-01-02 03:04:05', new DateTimeZone('Australia/Lord_Howe')),
            'carbon' => Carbon::parse('2026-01-02 03:04:05.123456', 'UTC'),
            'base carbon' => \Carbon\Carbon::parse('2026-01-02 03:04:05', '+02:00'),
            'immutable' => CarbonImmutable::parse('2026-01-02 03:04:05', 'Asia/Kathmandu'),
            'epoch' => new DateTimeImmutable('@0'),
            'before epoch' => new DateTimeImmutable('1901-02-03 04:05:06.7', new DateTimeZone('UTC')),
            'year 5' => (new DateTimeImmutable('2000-01-01', new DateTimeZone('UTC')))->setDate(5, 1, 2),
            'before our era' => (new DateTimeImmutable('2000-01-01', new DateTimeZone('UTC')))->setDate(-44, 3, 15),
            'year 12345' => (new DateTimeImmutable('2000-01-01', new DateTimeZone('UTC')))->setDate(12345, 6, 7),
        ];
    }
}
