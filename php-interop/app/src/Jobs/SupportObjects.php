<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Support\Collection;
use Illuminate\Support\Fluent;
use Illuminate\Support\HtmlString;
use Illuminate\Support\Str;

/** Small objects of the framework. */
class SupportObjects implements ShouldQueue
{
    use Queued;

    public Collection $collection;

    public $stringable;

    public $fluent;

    public $html;

    public function __construct()
    {
        $this->collection = new Collection(['a' => 1, 'b' => [2, 3], 'c' => new Collection([4.5])]);
        $this->stringable = Str::of('some text')->append('!');
        $this->fluent = new Fluent(['name' => 'x', 'size' => 2]);
        $this->html = new HtmlString('<b>bold</b>');
    }
}
