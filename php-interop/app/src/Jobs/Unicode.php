<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Text that encoders often get wrong. */
class Unicode implements ShouldQueue
{
    use Queued;

    public array $texts;

    public $żółć = 'property';

    public function __construct()
    {
        $this->texts = [
            'emoji' => "\u{1F680} \u{1F468}\u{200D}\u{1F469}\u{200D}\u{1F467} \u{1F1F5}\u{1F1F1}",
            'separators' => "a\u{2028}b\u{2029}c",
            'combining' => "e\u{301} \u{e9} n\u{303}",
            'quotes' => '"double" \'single\' \\back\\slash\\ /slash/',
            'markup' => '</script><b>&amp;</b>',
            'controls' => "\x01\x02\x08\t\n\v\f\r\x1b\x1f\x7f",
            'bidi' => "\u{202E}abc\u{202C}",
            'bom' => "\u{FEFF}text",
            'last' => "\u{10FFFF}\u{FFFF}\u{E000}",
            'polish' => 'Zażółć gęślą jaźń',
            'serialized' => 's:3:"abc";}O:8:"stdClass":0:{}',
            'escapes' => '\u0041 \x41 \0 \n',
            'empty' => '',
            "key \u{1F511}" => "value",
        ];
    }
}
